//! Budgets beside machines of which nobody says what they cost.

use super::*;

/// One member of a known price, and three that were adopted, of a type that the provider does not list.
fn four(per_hour: Option<Money>) -> Observation {
    let mut four = seen(4);
    four.fleet.machines.truncate(1);
    (four.fleet.target, four.fleet.policy.budget.per_hour) = (Some(1), per_hour);
    // None of them has a token of the fleet, or it would take them for its own.
    for instance in &mut four.instances.as_mut().unwrap()[1..] {
        (instance.token, instance.kind) = (None, Some("huge".to_owned()));
    }
    for number in 2..=4 {
        let (instance, member) = (Some(format!("i{number}")), format!("m{number}"));
        let (adopts, answer) = ordered(four, FleetOrder::Adopt { instance, member });
        assert_eq!(answer, Ok(()));
        four = adopts;
    }
    assert_eq!((four.fleet.serving(), four.fleet.cost_per_hour()), (4, Money(1_000_000)));
    four
}

fn plan(seen: &Observation) -> Result<(), HeldChange> {
    ordered(seen.clone(), FleetOrder::Plan(Resize(1))).1
}

/// They counted as free, so the whole budget was spent beside them.
#[test]
fn nothing_is_bought_within_a_budget_beside_machines_of_an_unknown_price() {
    let mut four = self::four(Some(Money(3_000_000)));
    let Err(HeldChange::Provider { detail }) = plan(&four) else { panic!("{:?}", plan(&four)) };
    assert!(detail.contains("i2, which is of the type \"huge\""), "{detail}");
    assert_eq!(plan(&self::four(None)), Ok(()), "no budget has to be kept");
    // Their price is learned as soon as the provider says it.
    let mut huge = four.provider.as_ref().unwrap().types[0].clone();
    (huge.name, huge.price_per_hour) = ("huge".to_owned(), Money(500_000));
    four.provider.as_mut().unwrap().types.push(huge);
    four.fleet = published(&four);
    assert_eq!(four.fleet.cost_per_hour(), Money(2_500_000));
    let (cost, most, span) = (3_500_000, 3_000_000, "hour".to_owned());
    assert_eq!(plan(&four), Err(HeldChange::Budget { cost, most, span }));
    four.fleet.policy.budget.per_hour = Some(Money(3_500_000));
    assert_eq!(plan(&four), Ok(()));
}
