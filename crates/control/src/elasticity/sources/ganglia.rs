//! The XML of a Ganglia daemon: what it last heard of each host, and how long ago.
//!
//! A document is taken as a whole or refused as a whole. Only the five entities of XML itself are known; one that a document
//! declares or uses beside them refuses it, so nothing grows and nothing is opened.
//!
//! Must never: give a value whose age is not known, or that its daemon no longer stands by.

use std::collections::BTreeMap;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// Attributes of one element at most.
const ATTRIBUTES_MAX: usize = 64;
/// The root of a document.
const ROOT: &str = "GANGLIA_XML";

/// A host of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Host {
    name: String,
    ip: String,
    /// Figures by name; none where one is no number, too old, or of unknown age.
    pub metrics: BTreeMap<String, Option<Figure>>,
}

/// A value, and how long ago it was heard, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub value: f64,
    pub age_ms: u64,
}

impl Host {
    /// Whether it is the host of a member with this address.
    pub(super) fn is_at(&self, address: &str) -> bool {
        self.ip == address || self.name.eq_ignore_ascii_case(address)
    }
}

/// Reads a document. Of each host, the metrics are kept whose names are asked for.
///
/// # Errors
/// With what is wrong with it. Nothing of a document that is wrong anywhere is of use.
pub(super) fn read(bytes: Vec<u8>, is_asked: impl Fn(&str) -> bool) -> Result<Vec<Host>, String> {
    // Daemons say ISO-8859-1, and pass on what they were given.
    let text = String::from_utf8(bytes)
        .unwrap_or_else(|error| error.as_bytes().iter().map(|byte| char::from(*byte)).collect());
    let mut reader = Reader::from_str(&text);
    let mut document = Document { is_asked, hosts: Vec::new(), open: Vec::new(), is_begun: false };
    loop {
        let event = reader.read_event().map_err(|error| no_xml(reader.error_position(), &error))?;
        let at = reader.buffer_position();
        if matches!(event, Event::Eof) {
            return document.end();
        }
        document.take(event).map_err(|why| format!("the document is refused at byte {at}: {why}"))?;
    }
}

fn no_xml(at: u64, error: &quick_xml::Error) -> String {
    // The parser's own words may quote the document.
    let kind = match error {
        quick_xml::Error::Syntax(_) => "it is cut or is no XML",
        quick_xml::Error::IllFormed(_) => "its elements do not fit together",
        _ => "it is no XML",
    };
    format!("the document is refused at byte {at}: {kind}")
}

/// A document while it is read.
struct Document<F> {
    is_asked: F,
    hosts: Vec<Host>,
    /// Whether each element that is open is a host that still stands by its metrics, the outermost first.
    open: Vec<Option<bool>>,
    is_begun: bool,
}

impl<F: Fn(&str) -> bool> Document<F> {
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Start(element) => {
                let host = self.element(&element)?;
                self.open.push(host);
            }
            Event::Empty(element) => {
                self.element(&element)?;
            }
            Event::End(_) => {
                self.open.pop();
            }
            Event::DocType(text) if contains(&text, b"<!ENTITY") => {
                return Err("it declares entities".to_owned());
            }
            Event::GeneralRef(entity) => {
                let name = entity.decode().map_err(|_| "an entity is no text".to_owned())?;
                let is_known = entity.is_char_ref() || ["lt", "gt", "amp", "apos", "quot"].contains(&&*name);
                if !is_known {
                    return Err("it uses an entity beside the five of XML".to_owned());
                }
            }
            Event::Text(text) if self.open.is_empty() && !text.iter().all(u8::is_ascii_whitespace) => {
                return Err("there is text outside of its root".to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    /// What an element says; for a host, whether it stands by its metrics.
    fn element(&mut self, element: &BytesStart<'_>) -> Result<Option<bool>, String> {
        let name = element.name();
        if self.open.is_empty() {
            if self.is_begun || name.as_ref() != ROOT.as_bytes() {
                return Err(format!("its root is not one {ROOT}"));
            }
            self.is_begun = true;
        }
        let attributes = attributes(element)?;
        let text = |name: &str| attributes.get(name).map_or("", String::as_str);
        match name.as_ref() {
            b"HOST" => {
                let (name, ip) = (text("NAME").to_owned(), text("IP").to_owned());
                self.hosts.push(Host { name, ip, metrics: BTreeMap::new() });
                return Ok(Some(!is_given_up(text("TN"), text("DMAX"))));
            }
            b"METRIC" if (self.is_asked)(text("NAME")) => {
                let Some(Some(is_heard)) = self.open.last().copied() else { return Ok(None) };
                if ["string", "timestamp"].contains(&text("TYPE")) {
                    return Ok(None);
                }
                let figure = figure(text("VAL"), text("TN"), text("DMAX")).filter(|_| is_heard);
                let host = self.hosts.last_mut().expect("a host is open, so it was added");
                host.metrics.insert(text("NAME").to_owned(), figure);
            }
            _ => {}
        }
        Ok(None)
    }

    fn end(self) -> Result<Vec<Host>, String> {
        match self.is_begun && self.open.is_empty() {
            true => Ok(self.hosts),
            false => Err("the document is refused: it is empty or cut".to_owned()),
        }
    }
}

/// Reads all attributes, those also that are of no use, so that an entity in any of them refuses the document.
fn attributes(element: &BytesStart<'_>) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for attribute in element.attributes() {
        let attribute = attribute.map_err(|_| "an attribute is wrong".to_owned())?;
        let value = attribute.normalized_value(XmlVersion::Implicit1_0);
        let value = value.map_err(|_| "an attribute has an entity beside the five of XML".to_owned())?;
        let name = String::from_utf8_lossy(attribute.key.as_ref()).into_owned();
        all.insert(name, value.into_owned());
        if all.len() > ATTRIBUTES_MAX {
            return Err(format!("an element has more than {ATTRIBUTES_MAX} attributes"));
        }
    }
    Ok(all)
}

/// Whether something was heard longer ago than it counts for. DMAX 0: it counts for ever.
fn is_given_up(heard_s_ago: &str, counts_s: &str) -> bool {
    let seconds = |text: &str| text.parse::<u64>().unwrap_or(0);
    seconds(counts_s) > 0 && seconds(heard_s_ago) > seconds(counts_s)
}

fn figure(value: &str, heard_s_ago: &str, counts_s: &str) -> Option<Figure> {
    let value = value.trim().parse::<f64>().ok().filter(|value| value.is_finite())?;
    let age_ms = heard_s_ago.parse::<u64>().ok()?.checked_mul(1000)?;
    (!is_given_up(heard_s_ago, counts_s)).then_some(Figure { value, age_ms })
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What gmond 3.7.2 wrote, with figures that `gmetric --spoof` gave it.
    const RECORDED: &str = include_str!("gmond.xml");

    fn read_text(text: &str) -> Result<Vec<Host>, String> {
        read(text.as_bytes().to_vec(), |_| true)
    }

    fn with(from: &str, to: &str) -> Result<Vec<Host>, String> {
        assert!(RECORDED.contains(from), "{from} is not in the document");
        read_text(&RECORDED.replacen(from, to, 1))
    }

    fn of<'a>(hosts: &'a [Host], address: &str) -> &'a Host {
        hosts.iter().find(|host| host.is_at(address)).unwrap()
    }

    fn second(hosts: Result<Vec<Host>, String>) -> Option<Figure> {
        of(&hosts.unwrap(), "127.0.0.2").metrics["processor"]
    }

    #[test]
    fn a_recorded_document_gives_figures_by_host_with_their_ages() {
        let hosts = read_text(RECORDED).unwrap();
        let figure = |value, age_ms| Some(Figure { value, age_ms });
        assert_eq!(of(&hosts, "127.0.0.1").metrics["processor"], figure(41.5, 2000));
        assert_eq!(of(&hosts, "LOCALHOST").metrics["load_one"], figure(5.25, 3000));
        assert_eq!(of(&hosts, "n2").metrics["processor"], figure(42.5, 2000));
        assert_eq!(of(&hosts, "n2").metrics.get("word"), None, "a text is no figure");
        assert!(!hosts.iter().any(|host| host.is_at("127.0.0.3")));
        let asked = read(RECORDED.as_bytes().to_vec(), |name| name == "processor").unwrap();
        assert!(asked.iter().all(|host| host.metrics.len() == 1));
    }

    #[test]
    fn what_is_old_no_number_or_of_unknown_age_is_missing_and_never_0() {
        let metric = "VAL=\"42.5\" TYPE=\"double\" UNITS=\"%\" TN=\"2\" TMAX=\"20\" DMAX=\"60\"";
        let changed = |from: &str, to: &str| second(with(metric, &metric.replace(from, to)));
        assert_eq!(changed("TN=\"2\"", "TN=\"60\"").map(|figure| figure.age_ms), Some(60_000));
        assert_eq!(changed("TN=\"2\"", "TN=\"61\""), None);
        let for_ever = metric.replace("DMAX=\"60\"", "DMAX=\"0\"").replace("TN=\"2\"", "TN=\"9999\"");
        assert_eq!(second(with(metric, &for_ever)).map(|figure| figure.age_ms), Some(9_999_000));
        for (from, to) in [
            ("42.5", "nan"),
            ("42.5", "inf"),
            ("42.5", ""),
            ("42.5", "many"),
            (" TN=\"2\"", ""),
            ("TN=\"2\"", "TN=\"-1\""),
            ("TN=\"2\"", "TN=\"99999999999999999999\""),
        ] {
            assert_eq!(changed(from, to), None, "{to:?}");
        }
        let host = "IP=\"127.0.0.2\" TAGS=\"\" REPORTED=\"1795968928\" TN=\"2\"";
        assert_eq!(second(with(host, &host.replace("TN=\"2\"", "TN=\"61\""))), None, "its host was given up");
    }

    #[test]
    fn a_document_that_is_cut_anywhere_is_refused() {
        let whole = RECORDED.trim_end().len();
        for end in 0..whole {
            let cut = read_text(&RECORDED[..end]);
            assert!(cut.is_err(), "cut behind {end} bytes it gave {cut:?}");
        }
        assert!(read_text(RECORDED.trim_end()).is_ok());
    }

    #[test]
    fn a_document_that_declares_entities_is_refused_as_a_whole() {
        let host = "<HOST NAME=\"n2\"";
        for (from, to, why) in [
            ("<!ELEMENT HOSTS EMPTY>", "<!ENTITY a \"b\">", "declares entities"),
            ("<!ELEMENT HOSTS EMPTY>", "<!ENTITY % a SYSTEM \"file:///etc/passwd\">", "declares entities"),
            (host, "<HOST NAME=\"&a;\"", "entity beside the five"),
            ("TAGS=\"\"", "TAGS=\"&nbsp;\"", "entity beside the five"),
            ("<EXTRA_DATA>", "<EXTRA_DATA>&a;", "entity beside the five"),
            ("</CLUSTER>", "</CLUSTERS>", "do not fit together"),
            ("</GANGLIA_XML>", "</GANGLIA_XML><GANGLIA_XML/>", "root is not one"),
            ("</GANGLIA_XML>", "</GANGLIA_XML>more", "outside of its root"),
            ("UNITS=\"%\"", "UNITS=\"%\" UNITS=\"%\"", "an attribute is wrong"),
        ] {
            let refused = with(from, to);
            assert!(refused.as_ref().is_err_and(|error| error.contains(why)), "{to}: {refused:?}");
        }
        let many: String = (0..100).map(|number| format!(" A{number}=\"\"")).collect();
        assert!(
            with(host, &format!("{host}{many}")).is_err_and(|why| why.contains("more than 64 attributes"))
        );
        for text in ["", " ", "<html></html>", "not found", "\0\0"] {
            assert!(read_text(text).is_err(), "{text:?}");
        }
        let five = with(host, "<HOST NAME=\"&lt;&#65;&amp;&quot;\"").unwrap();
        assert_eq!(of(&five, "127.0.0.2").name, "<A&\"");
        let latin = RECORDED.replacen(host, "<HOST NAME=\"~\"", 1).into_bytes();
        let latin = latin.iter().map(|byte| if *byte == b'~' { 0xfc } else { *byte }).collect();
        assert!(read(latin, |_| true).is_ok());
    }
}
