//! How many places each node should have: its share by weight, as far as zones and numbers allow.
//!
//! A partition has one place at a node, and at most a number of places in a zone. Within these bounds shares are in
//! proportion to weights: *one* factor, found by bisection, turns weights into places, in each zone that is not full.
//! Shares are fractions and places are not. What rounding leaves goes to the nodes that hold more than their share
//! already: so nothing moves for the sake of a fraction.

use super::assignment::Assignment;

/// Steps of the bisection: more than a fraction has bits.
const HALVINGS: usize = 64;

/// Places of each node, in the order of the assignment's nodes. Their sum is the number of places.
pub(super) fn quotas(assignment: &Assignment) -> Vec<usize> {
    let zones = assignment.zone_count();
    let partitions = assignment.partitions() as f64;
    let members: Vec<Vec<usize>> = (0..zones).map(|zone| assignment.members(zone)).collect();
    let room: Vec<f64> = (0..zones).map(|zone| partitions * assignment.zone_places(zone) as f64).collect();
    let weight = |&node: &usize| assignment.weight(node);
    let of_zone = |zone: usize, factor: f64| -> f64 {
        let whole: f64 = members[zone].iter().map(|node| (weight(node) * factor).min(partitions)).sum();
        whole.min(room[zone])
    };
    let places = assignment.places() as f64;
    let most = partitions * 2.0;
    let factor = bisected(most, |factor| (0..zones).map(|zone| of_zone(zone, factor)).sum::<f64>() < places);
    let shares: Vec<f64> = (0..zones).map(|zone| of_zone(zone, factor)).collect();
    let held: Vec<usize> =
        members.iter().map(|nodes| nodes.iter().map(|&node| assignment.load(node)).sum()).collect();
    let bounds: Vec<usize> = room.iter().map(|&room| room as usize).collect();
    let totals = rounded(&shares, &held, &bounds, assignment.places());
    let mut quotas = vec![0; assignment.node_count()];
    for (zone, nodes) in members.iter().enumerate() {
        let total = totals[zone] as f64;
        let factor = bisected(most, |factor| {
            nodes.iter().map(|node| (weight(node) * factor).min(partitions)).sum::<f64>() < total
        });
        let shares: Vec<f64> = nodes.iter().map(|node| (weight(node) * factor).min(partitions)).collect();
        let held: Vec<usize> = nodes.iter().map(|&node| assignment.load(node)).collect();
        let bounds = vec![assignment.partitions(); nodes.len()];
        for (&node, quota) in nodes.iter().zip(rounded(&shares, &held, &bounds, totals[zone])) {
            quotas[node] = quota;
        }
    }
    quotas
}

/// The least factor that is not too small.
fn bisected(most: f64, is_too_small: impl Fn(f64) -> bool) -> f64 {
    let (mut least, mut most) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = least + (most - least) / 2.0;
        if is_too_small(middle) { least = middle } else { most = middle }
    }
    most
}

/// Whole numbers near the shares, whose sum is `total`: those above get the rest that hold more already, then those with
/// the greatest fractions.
fn rounded(shares: &[f64], held: &[usize], bounds: &[usize], total: usize) -> Vec<usize> {
    // A share that is whole but for an error of rounding is whole.
    let floor = |share: f64| (share + 1e-6).floor();
    let mut whole: Vec<usize> =
        shares.iter().zip(bounds).map(|(&share, &bound)| (floor(share) as usize).min(bound)).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    let holds_more = |at: usize| held[at] > whole[at];
    let fraction = |at: usize| shares[at] - floor(shares[at]);
    order.sort_by(|&a, &b| {
        holds_more(b).cmp(&holds_more(a)).then(fraction(b).total_cmp(&fraction(a))).then(a.cmp(&b))
    });
    let rest = total.saturating_sub(whole.iter().sum());
    // One each is enough: fractions are less than one, and those without room have none.
    order.retain(|&at| whole[at] < bounds[at]);
    order.into_iter().take(rest).for_each(|at| whole[at] += 1);
    whole
}
