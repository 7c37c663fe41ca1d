//! Puts mutants behind switches: the text of a file, with all its mutants in it and none of them on.
//!
//! `a + b` becomes `(if on(7) { a - b } else { a + b })`. Within the alternatives stands the text as it was, so that
//! the whole grows with the depth of an expression and no faster.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::list::{Genre, Mutant, Place};

/// Where the text of a mutant stands in the new text, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) id: usize,
    pub(super) range: Range<usize>,
    /// Whether this is the mutant's own text, or all that its switch decides on.
    pub(super) own: bool,
}

/// The module that a crate with switches has at its root. `MUTANT` says which one is on; with `MUTANT_LOG` each place
/// that is reached is written to that file, once.
pub(super) fn module(count: usize) -> String {
    format!(
        "
#[doc(hidden)]
#[allow(missing_docs, unreachable_pub)]
pub mod mutant_switch {{
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{{AtomicBool, Ordering}};
    static SETTINGS: OnceLock<(usize, Option<String>)> = OnceLock::new();
    static REACHED: [AtomicBool; {count}] = [const {{ AtomicBool::new(false) }}; {count}];
    #[cold]
    fn settings() -> (usize, Option<String>) {{
        let on = std::env::var(\"MUTANT\").ok().and_then(|on| on.parse().ok());
        (on.unwrap_or(usize::MAX), std::env::var(\"MUTANT_LOG\").ok())
    }}
    #[cold]
    fn record(id: usize, log: &str) {{
        if !REACHED[id].swap(true, Ordering::Relaxed) {{
            let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
            log.write_all(format!(\"{{id}}\\n\").as_bytes()).unwrap();
        }}
    }}
    pub fn on(id: usize) -> bool {{
        let (on, log) = SETTINGS.get_or_init(settings);
        if let Some(log) = log {{
            record(id, log);
        }}
        *on == id
    }}
}}
"
    )
}

/// The text of a file with a switch for each of its mutants, and where they stand in it.
///
/// # Errors
/// When the text is not Rust.
pub(super) fn switched(
    text: &str,
    mutants: &[Mutant],
    wanted: impl Iterator<Item = usize>,
) -> syn::Result<(String, Vec<Trace>)> {
    let file = syn::parse_file(text)?;
    let mut at: HashMap<(Genre, Place), Vec<usize>> = HashMap::new();
    for id in wanted {
        at.entry((mutants[id].genre, mutants[id].span.start)).or_default().push(id);
    }
    let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    let mut finder = Finder { text, lines, at, mutants, constants: 0, edits: Vec::new() };
    finder.visit_file(&file);
    let mut edits = finder.edits;
    edits.sort_by_key(|edit| (edit.range.start, usize::MAX - edit.range.end, edit.rank));
    let mut writer = Writer { text, edits: &edits, next: 0, out: String::new(), traces: Vec::new() };
    writer.write(0..text.len());
    assert_eq!(writer.next, edits.len(), "expressions lie within each other or apart");
    Ok((writer.out, writer.traces))
}

/// Text to put before and behind a range.
struct Edit {
    range: Range<usize>,
    /// Of two with one range, the lower one lies around the other.
    rank: u8,
    before: Vec<(String, Option<usize>)>,
    behind: String,
    ids: Vec<usize>,
}

struct Writer<'a> {
    text: &'a str,
    edits: &'a [Edit],
    next: usize,
    out: String,
    traces: Vec<Trace>,
}

impl Writer<'_> {
    fn write(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while let Some(edit) = self.edits.get(self.next).filter(|edit| edit.range.end <= range.end) {
            self.next += 1;
            self.out.push_str(&self.text[at..edit.range.start]);
            let begun = self.out.len();
            for (text, id) in &edit.before {
                let start = self.out.len();
                self.out.push_str(text);
                let range = start..self.out.len();
                self.traces.extend(id.map(|id| Trace { id, range, own: true }));
            }
            self.write(edit.range.clone());
            self.out.push_str(&edit.behind);
            let whole = begun..self.out.len();
            self.traces.extend(edit.ids.iter().map(|&id| Trace { id, range: whole.clone(), own: false }));
            at = edit.range.end;
        }
        self.out.push_str(&self.text[at..range.end]);
    }
}

struct Finder<'a> {
    text: &'a str,
    /// Where each line begins, in bytes.
    lines: Vec<usize>,
    at: HashMap<(Genre, Place), Vec<usize>>,
    mutants: &'a [Mutant],
    /// In how many constants this is: a switch cannot be asked at compile time.
    constants: usize,
    edits: Vec<Edit>,
}

fn on(id: usize) -> String {
    format!("crate::mutant_switch::on({id})")
}

/// Whether a condition binds names, and may stand in no other expression.
fn binds(condition: &syn::Expr) -> bool {
    match condition {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(both) => binds(&both.left) || binds(&both.right),
        _ => false,
    }
}

impl Finder<'_> {
    fn byte(&self, place: LineColumn) -> usize {
        let start = self.lines[place.line - 1];
        let column = self.text[start..].char_indices().nth(place.column);
        column.map_or(self.text.len(), |(at, _)| start + at)
    }

    fn range(&self, span: Span) -> Range<usize> {
        self.byte(span.start())..self.byte(span.end())
    }

    fn source(&self, span: Span) -> &str {
        &self.text[self.range(span)]
    }

    fn find(&self, genre: Genre, span: Span) -> Vec<usize> {
        if self.constants > 0 {
            return Vec::new();
        }
        let place = Place { line: span.start().line, column: span.start().column + 1 };
        self.at.get(&(genre, place)).cloned().unwrap_or_default()
    }

    fn within_constant(&mut self, constant: bool, visit: impl FnOnce(&mut Self)) {
        self.constants += usize::from(constant);
        visit(self);
        self.constants -= usize::from(constant);
    }

    /// Alternatives to an expression, each with its text.
    fn choose(&mut self, whole: Span, alternatives: Vec<(usize, String)>) {
        let ids = alternatives.iter().map(|(id, _)| *id).collect();
        let mut before = vec![("(".to_owned(), None)];
        before.extend(
            alternatives
                .into_iter()
                .map(|(id, text)| (format!("if {} {{ {text} }} else ", on(id)), Some(id))),
        );
        before.push(("{ ".to_owned(), None));
        self.edits.push(Edit { range: self.range(whole), rank: 2, before, behind: " })".to_owned(), ids });
    }

    /// Early answers at the beginning of a body.
    fn answer(&mut self, body: &syn::Block) {
        let Some(first) = body.stmts.first() else { return };
        let braces = body.brace_token.span;
        let open = self.byte(braces.open().end());
        let ids = self.find(Genre::FnValue, first.span());
        if !ids.is_empty() {
            let text = |id: usize| format!(" if {} {{ return {}; }} ", on(id), self.mutants[id].replacement);
            let before = ids.iter().map(|&id| (text(id), Some(id))).collect();
            let range = open..self.byte(braces.close().start());
            self.edits.push(Edit { range, rank: 0, before, behind: String::new(), ids });
        }
    }

    fn guard(&mut self, guard: &syn::Expr, gone: &[usize]) {
        if binds(guard) {
            return;
        }
        let range = self.range(guard.span());
        for &id in gone {
            let before = vec![(format!("!{} && (", on(id)), Some(id))];
            self.edits.push(Edit {
                range: range.clone(),
                rank: 0,
                before,
                behind: ")".to_owned(),
                ids: vec![id],
            });
        }
        for id in self.find(Genre::MatchArmGuard, guard.span()) {
            let before = match self.mutants[id].replacement.as_str() {
                "true" => format!("({} || (", on(id)),
                _ => format!("(!{} && (", on(id)),
            };
            let before = vec![(before, Some(id))];
            self.edits.push(Edit {
                range: range.clone(),
                rank: 1,
                before,
                behind: "))".to_owned(),
                ids: vec![id],
            });
        }
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        self.within_constant(true, |this| visit::visit_item_const(this, item));
    }

    fn visit_impl_item_const(&mut self, item: &'a syn::ImplItemConst) {
        self.within_constant(true, |this| visit::visit_impl_item_const(this, item));
    }

    fn visit_trait_item_const(&mut self, item: &'a syn::TraitItemConst) {
        self.within_constant(true, |this| visit::visit_trait_item_const(this, item));
    }

    fn visit_item_static(&mut self, item: &'a syn::ItemStatic) {
        self.within_constant(true, |this| visit::visit_item_static(this, item));
    }

    fn visit_expr_const(&mut self, block: &'a syn::ExprConst) {
        self.within_constant(true, |this| visit::visit_expr_const(this, block));
    }

    fn visit_type_array(&mut self, array: &'a syn::TypeArray) {
        self.within_constant(true, |this| visit::visit_type_array(this, array));
    }

    fn visit_variant(&mut self, variant: &'a syn::Variant) {
        self.within_constant(true, |this| visit::visit_variant(this, variant));
    }

    fn visit_expr_repeat(&mut self, array: &'a syn::ExprRepeat) {
        self.visit_expr(&array.expr);
        self.within_constant(true, |this| this.visit_expr(&array.len));
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.within_constant(item.sig.constness.is_some(), |this| {
            this.answer(&item.block);
            visit::visit_item_fn(this, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.within_constant(item.sig.constness.is_some(), |this| {
            this.answer(&item.block);
            visit::visit_impl_item_fn(this, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'a syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.answer(body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_binary(&mut self, both: &'a syn::ExprBinary) {
        let ids = self.find(Genre::BinaryOperator, both.op.span());
        if !ids.is_empty() && !binds(&both.left) && !binds(&both.right) {
            let (left, right) = (self.source(both.left.span()), self.source(both.right.span()));
            let text = |id: usize| (id, format!("{left} {} {right}", self.mutants[id].replacement));
            let alternatives = ids.into_iter().map(text).collect();
            self.choose(both.span(), alternatives);
        }
        visit::visit_expr_binary(self, both);
    }

    fn visit_expr_unary(&mut self, unary: &'a syn::ExprUnary) {
        let ids = self.find(Genre::UnaryOperator, unary.op.span());
        if !ids.is_empty() {
            let operand = self.source(unary.expr.span());
            let text = |id: usize| (id, format!("{} {operand}", self.mutants[id].replacement));
            let alternatives = ids.into_iter().map(text).collect();
            self.choose(unary.span(), alternatives);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'a syn::Arm) {
        let gone = self.find(Genre::MatchArm, arm.span());
        match &arm.guard {
            Some((_, guard)) => self.guard(guard, &gone),
            None if !gone.is_empty() => {
                let not: Vec<String> = gone.iter().map(|&id| format!("!{}", on(id))).collect();
                let behind = format!(" if {}", not.join(" && "));
                let range = self.range(arm.pat.span());
                self.edits.push(Edit { range, rank: 0, before: Vec::new(), behind, ids: gone });
            }
            None => {}
        }
        visit::visit_arm(self, arm);
    }
}

/// All mutants of one list that have a switch in these traces.
pub(super) fn placed(traces: &[Trace]) -> HashSet<usize> {
    traces.iter().map(|trace| trace.id).collect()
}

#[cfg(test)]
mod tests {
    use super::super::list;
    use super::*;

    fn mutant(genre: Genre, line: usize, column: usize, replacement: &str) -> Mutant {
        let span = list::Span { start: Place { line, column } };
        Mutant { file: String::new(), genre, name: String::new(), replacement: replacement.into(), span }
    }

    fn switched_text(text: &str, mutants: &[Mutant]) -> String {
        switched(text, mutants, 0..mutants.len()).expect("Rust").0.replace("crate::mutant_switch::", "")
    }

    #[test]
    fn an_operator_within_another_has_its_switch_and_the_alternatives_stay_as_they_were() {
        let mutants = [mutant(Genre::BinaryOperator, 1, 22, "-"), mutant(Genre::BinaryOperator, 1, 26, "<=")];
        let text = switched_text("fn f() -> bool { 'x'; a + b < c }", &mutants);
        assert_eq!(text, "fn f() -> bool { 'x'; a + b < c }", "column 22 is not an operator");
        let mutants = [mutant(Genre::BinaryOperator, 1, 20, "-"), mutant(Genre::BinaryOperator, 1, 24, "<=")];
        let text = switched_text("fn f() -> bool { a + b < c }", &mutants);
        let inner = "(if on(0) { a - b } else { a + b })";
        assert_eq!(text, format!("fn f() -> bool {{ (if on(1) {{ a + b <= c }} else {{ {inner} < c }}) }}"));
    }

    #[test]
    fn a_body_answers_at_its_beginning_and_an_arm_is_gone_by_its_guard() {
        let text = "fn f(x: u8) -> bool {\n    match x {\n        1 => true,\n        2 if !x => false,\n        _ => y,\n    }\n}\n";
        let mutants = [
            mutant(Genre::FnValue, 2, 5, "true"),
            mutant(Genre::MatchArm, 3, 9, ""),
            mutant(Genre::MatchArmGuard, 4, 14, "false"),
            mutant(Genre::UnaryOperator, 4, 14, ""),
            mutant(Genre::MatchArm, 4, 9, ""),
        ];
        let text = switched_text(text, &mutants);
        assert!(text.starts_with("fn f(x: u8) -> bool { if on(0) { return true; } \n"), "{text}");
        assert!(text.contains("1 if !on(1) => true"), "{text}");
        assert!(
            text.contains("2 if !on(4) && ((!on(2) && ((if on(3) {  x } else { !x })))) => false"),
            "{text}"
        );
    }

    #[test]
    fn constants_and_conditions_that_bind_names_have_no_switch() {
        let text = "const A: u8 = 1 + 2;\nconst fn f() -> u8 { 1 + 2 }\nfn g() { if let B = b && c {} }\n";
        let mutants = [
            mutant(Genre::BinaryOperator, 1, 17, "-"),
            mutant(Genre::BinaryOperator, 2, 24, "-"),
            mutant(Genre::FnValue, 2, 22, "0"),
            mutant(Genre::BinaryOperator, 3, 23, "||"),
        ];
        assert_eq!(switched_text(text, &mutants), text);
    }
}
