//! What nodes say of partitions that move, byte by byte.

use expect_test::expect;
use model::{Generation, NodeId, PartitionId};
use wire::messages::*;

use super::golden::{request, response};
use super::samples::*;

pub fn requests() -> Vec<u8> {
    vec![request(
        MovesGet {},
        expect![[r#"
            0b ac 02                                         ...
        "#]],
    )]
}

pub fn responses() -> Vec<u8> {
    vec![response(
        moves_got(),
        expect![[r#"
            89 01 80 80 80 80 f0 31 08 01 81 04 07 01 01 05  .......1........
            63 61 72 74 73 02 01 02 ac 02 80 80 04 01 05 63  carts..........c
            61 72 74 73 02 05 03                             arts...
        "#]],
    )]
}

fn moves_got() -> MovesGot {
    let merged = vec![(store(), vec![NodeId(1), NodeId(2)])];
    let (partition, generation) = (PartitionId(513), Generation(7));
    let entered = PartitionEntered { partition, generation, whole: true, merged, records: 300, bytes: 65536 };
    let leftover = Leftover { store: store(), partition: PartitionId(2), records: 5 };
    MovesGot {
        incarnation: 0x18f_0000_0000,
        adopted: Generation(8),
        entered: vec![entered],
        leftovers: vec![leftover],
        hints: 3,
    }
}

#[test]
fn what_a_node_says_of_moves_is_what_steps_are_decided_by() {
    let told = moves_got();
    let facts = told.facts();
    assert_eq!(facts.adopted, Some((told.incarnation, told.adopted)));
    let entered = &facts.entered[&PartitionId(513)];
    assert_eq!((entered.incarnation, entered.whole), (told.incarnation, true));
    assert_eq!(PartitionEntered::of(PartitionId(513), entered, (300, 65536)), told.entered[0]);
}
