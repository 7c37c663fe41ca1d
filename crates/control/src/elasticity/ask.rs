//! The verbs of the contract, with their types.
//!
//! Must never: hand on a text of an adapter that is long, or a value that the contract does not know. Both may reach a
//! document, and the value may be a secret.

use model::elasticity::adapter::{
    Boot, EngineFacts, Evidence, Instance, Instances, Member, Members, PROTOCOL, ProviderFacts,
};
use model::elasticity::{Fleet, Token};
use model::unquoted;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::adapters::{Adapters, CallError, Role};
use super::rpc::plain;

/// The longest name or address that an adapter may give anything, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// Warnings of a provider that are told at most.
const WARNINGS_MAX: usize = 8;

/// The adapters of one fleet.
pub(super) struct MemberAsk<'a> {
    adapters: &'a dyn Adapters,
    fleet: &'a Fleet,
}

impl<'a> MemberAsk<'a> {
    pub(super) fn new(adapters: &'a dyn Adapters, fleet: &'a Fleet) -> MemberAsk<'a> {
        MemberAsk { adapters, fleet }
    }

    async fn call(&self, role: Role, method: &str, given: &[(&str, &str)]) -> Result<Json, CallError> {
        let policy = &self.fleet.policy;
        let name = if role == Role::Engine { &policy.engine } else { &policy.provider };
        let mut params = Map::from_iter([("fleet".to_owned(), Json::from(self.fleet.name.as_str()))]);
        params.extend(given.iter().map(|(name, value)| ((*name).to_owned(), Json::from(*value))));
        self.adapters.call((role, name), method, Json::Object(params)).await
    }

    async fn read<T: DeserializeOwned>(
        &self,
        role: Role,
        method: &str,
        given: &[(&str, &str)],
    ) -> Result<T, CallError> {
        let answer = self.call(role, method, given).await?;
        T::deserialize(&answer)
            .map_err(|error| mismatch::<T>(&answer, &error.to_string()))
            .map_err(|why| broken(role, method, &why))
    }

    /// What the provider is.
    pub(super) async fn provider(&self) -> Result<ProviderFacts, String> {
        let facts: ProviderFacts = self.read(Role::Provider, "describe", &[]).await.map_err(words)?;
        same_protocol(Role::Provider, facts.protocol)?;
        names(facts.types.iter().map(|kind| &kind.name).chain([&facts.name]))
            .map_err(|why| broken(Role::Provider, "describe", &why).detail)?;
        let warnings = facts.warnings.iter().take(WARNINGS_MAX).map(|words| plain(words)).collect();
        Ok(ProviderFacts { warnings, ..facts })
    }

    /// What the engine is.
    pub(super) async fn engine(&self) -> Result<EngineFacts, String> {
        let facts: EngineFacts = self.read(Role::Engine, "describe", &[]).await.map_err(words)?;
        same_protocol(Role::Engine, facts.protocol)?;
        names(facts.measures.iter().chain([&facts.name]))
            .map_err(|why| broken(Role::Engine, "describe", &why).detail)?;
        Ok(facts)
    }

    /// The machines with the fleet's tag.
    pub(super) async fn instances(&self) -> Result<Vec<Instance>, String> {
        let Instances { mut instances } = self.read(Role::Provider, "list", &[]).await.map_err(words)?;
        for one in &mut instances {
            let Instance { id, token, address, kind, detail, .. } = one;
            names([&*id].into_iter().chain(&*token).chain(&*address).chain(&*kind))
                .map_err(|why| broken(Role::Provider, "list", &why).detail)?;
            shorten(detail);
        }
        Ok(instances)
    }

    /// The engine's members.
    pub(super) async fn members(&self) -> Result<Vec<Member>, String> {
        let Members { mut members } = self.read(Role::Engine, "observe", &[]).await.map_err(words)?;
        for one in &mut members {
            let Member { id, address, detail, measures, .. } = one;
            names([&*id].into_iter().chain(&*address).chain(measures.keys()))
                .map_err(|why| broken(Role::Engine, "observe", &why).detail)?;
            shorten(detail);
        }
        Ok(members)
    }

    /// What the others say of a member, or of an address.
    pub(super) async fn evidence(&self, of: (&str, &str)) -> Result<Evidence, String> {
        let mut evidence: Evidence = self.read(Role::Engine, "evidence", &[of]).await.map_err(words)?;
        shorten(&mut evidence.detail);
        Ok(evidence)
    }

    /// Whether the provider would end a machine.
    pub(super) async fn preflight(&self, instance: &str) -> Result<(), CallError> {
        self.call(Role::Provider, "preflight", &[("instance", instance)]).await.map(drop)
    }

    /// Has a machine made that starts with what the engine says.
    pub(super) async fn ensure(&self, token: &Token, kind: &str) -> Result<(), CallError> {
        let boot: Result<Boot, _> = self.read(Role::Engine, "boot", &[("token", &token.0)]).await;
        // The provider is not asked where the engine does not say with what a machine starts.
        let Boot { script } = boot.map_err(|error| CallError { undone: true, ..error })?;
        let given = [("token", token.0.as_str()), ("type", kind), ("script", &script)];
        self.call(Role::Provider, "ensure", &given).await.map(drop)
    }

    /// Has a machine ended.
    pub(super) async fn terminate(&self, instance: &str) -> Result<(), CallError> {
        self.call(Role::Provider, "terminate", &[("instance", instance)]).await.map(drop)
    }

    /// A verb of the engine about one of its members.
    pub(super) async fn of_member(&self, verb: &str, member: &str) -> Result<(), CallError> {
        self.call(Role::Engine, verb, &[("member", member)]).await.map(drop)
    }
}

fn words(error: CallError) -> String {
    error.detail
}

/// What is told of an answer of another form.
fn broken(role: Role, method: &str, why: &str) -> CallError {
    let detail = format!(
        "the {role} adapter's answer to `{method}` is not as the contract says: {why}; check it with `tontine adapter check`"
    );
    CallError { for_good: false, undone: false, detail }
}

/// Where and how an answer is of another form, without any value that is in it.
fn mismatch<T: DeserializeOwned>(answer: &Json, error: &str) -> String {
    let why = unquoted::words(error);
    match place::<T>(answer, error) {
        Some(place) => format!("{}: {}", plain(&place), plain(&why)),
        None => plain(&why),
    }
}

/// Where the value is that cannot be read: the field, and of a list the element and its field.
fn place<T: DeserializeOwned>(answer: &Json, error: &str) -> Option<String> {
    let without = |object: &Map<String, Json>, field: &str| {
        let mut object = object.clone();
        object.remove(field);
        object
    };
    let mut bare = answer.as_object()?.clone();
    bare.values_mut().filter_map(Json::as_array_mut).for_each(Vec::clear);
    let is_told = |answer: Map<String, Json>| {
        T::deserialize(&Json::Object(answer)).is_err_and(|found| found.to_string() == error)
    };
    // A field that is missing is none of those that are there.
    let is_missing = error.starts_with("missing field ");
    if is_told(bare.clone()) {
        let is_bad = |field: &&String| !is_missing && !is_told(without(&bare, field));
        return bare.keys().find(is_bad).cloned();
    }
    let is_told_of = |field: &str, item: Json| {
        let mut one = bare.clone();
        one.insert(field.to_owned(), Json::Array(vec![item]));
        is_told(one)
    };
    for (field, list) in answer.as_object()? {
        let mut items = list.as_array().into_iter().flatten().enumerate();
        let found = items.find(|(_, item)| is_told_of(field, (*item).clone()));
        let Some((number, item)) = found else { continue };
        let parts = item.as_object().filter(|_| !is_missing);
        let part = parts.and_then(|parts| {
            parts.keys().find(|part| !is_told_of(field, Json::Object(without(parts, part))))
        });
        let part = part.map(|part| format!(".{part}")).unwrap_or_default();
        return Some(format!("{field}[{number}]{part}"));
    }
    None
}

/// Refuses a name that is long: it could not be cut without naming another thing.
fn names<'a>(names: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    match names.into_iter().find(|name| name.len() > NAME_BYTES_MAX) {
        Some(long) => Err(format!("a name has {} bytes, and {NAME_BYTES_MAX} are the most", long.len())),
        None => Ok(()),
    }
}

fn shorten(detail: &mut Option<String>) {
    *detail = detail.take().filter(|words| !words.trim().is_empty()).map(|words| plain(&words));
}

fn same_protocol(role: Role, protocol: u32) -> Result<(), String> {
    match protocol == PROTOCOL {
        true => Ok(()),
        false => Err(format!(
            "the {role} adapter speaks version {protocol} of the contract, and this controller version {PROTOCOL}; use an \
             adapter and a controller of one version"
        )),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use runtime::BoxFuture;
    use serde_json::json;

    use super::*;

    const SECRET: &str = "s3cret, expected hunter2";

    /// Answers everything with one value.
    struct Says(Json);

    impl Adapters for Says {
        fn call<'a>(
            &'a self,
            _: (Role, &'a str),
            _: &'a str,
            _: Json,
        ) -> BoxFuture<'a, Result<Json, CallError>> {
            Box::pin(async { Ok(self.0.clone()) })
        }
    }

    fn fleet() -> Fleet {
        let policy = json!({ "engine": "e", "provider": "p", "machine-type": "t", "min": 1, "max": 2 });
        Fleet::new("shop", "a1b2", serde_json::from_value(policy).unwrap())
    }

    #[test]
    fn an_answer_of_another_form_is_told_without_its_values() {
        let fleet = fleet();
        let good = json!({ "id": "i-1", "state": "running" });
        for (bad, told) in [
            (
                json!({ "id": "i-2", "state": SECRET }),
                "instances[1].state: a value is not as expected: one of",
            ),
            (
                json!({ "id": { SECRET: SECRET }, "state": "ended" }),
                "instances[1].id: a value is not as expected: a string",
            ),
            (json!({ "state": "running" }), "instances[1]: missing field `id`"),
            (json!({ "id": SECRET.repeat(40_000), "state": "running" }), "a name has 960000 bytes"),
        ] {
            let says = Says(json!({ "instances": [good, bad] }));
            let why = MemberAsk::new(&says, &fleet).instances().now_or_never().unwrap().unwrap_err();
            assert!(why.contains(told), "{why}");
            assert!(!why.contains("hunter2") && !why.contains("s3cret") && why.len() < 500, "{why}");
        }
    }

    #[test]
    fn a_price_that_is_none_is_told_with_its_field_and_so_is_what_is_missing() {
        let fleet = fleet();
        let kind = |price: Json| json!({ "name": "t", "price_per_hour": price });
        let facts =
            |price: Json| json!({ "name": "p", "protocol": 1, "types": [kind(json!("1")), kind(price)] });
        let of_price = "types[1].price_per_hour: a value is not as expected: an amount of money, such as 2.5, not negative";
        let mut quota = facts(json!("1"));
        quota["quota"] = json!(-7.5);
        for (answer, told) in [
            (facts(json!(-7.5)), of_price),
            (facts(json!("-7.5")), of_price),
            (facts(json!(-7)), of_price),
            (facts(json!(SECRET)), of_price),
            (quota, "quota: a value is not as expected: u32"),
            (
                json!({ "name": "p", "types": [kind(json!("1"))] }),
                "the contract says: missing field `protocol`",
            ),
            (
                json!({ "protocol": 1, "types": [kind(json!("1"))] }),
                "the contract says: missing field `name`",
            ),
            (
                json!({ "name": "p", "protocol": 1, "types": [kind(json!("1")), { "price_per_hour": "1" }] }),
                "types[1]: missing field `name`",
            ),
        ] {
            let says = Says(answer);
            let why = MemberAsk::new(&says, &fleet).provider().now_or_never().unwrap().unwrap_err();
            assert!(why.contains(told), "{told:?} is not in: {why}");
            assert!(!why.contains("hunter2") && !why.contains("7.5"), "{why}");
        }
    }

    #[test]
    fn the_words_of_an_answer_are_cut() {
        let fleet = fleet();
        let says = Says(json!({ "witnesses": ["n1"], "detail": "why\n".repeat(100_000) }));
        let evidence =
            MemberAsk::new(&says, &fleet).evidence(("member", "n4")).now_or_never().unwrap().unwrap();
        let detail = evidence.detail.unwrap();
        assert!(detail.len() <= 200 && detail.starts_with("why why"), "{detail}");
    }
}
