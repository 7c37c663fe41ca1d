//! The messages about artifacts, byte by byte.

use bytes::Bytes;
use expect_test::expect;
use model::{ArtifactNumber, Generation, ManifestDigest};
use smallvec::smallvec;
use wire::messages::*;

use super::golden::{request, response};
use super::samples::*;

pub fn requests() -> Vec<u8> {
    vec![
        request(
            ArtifactsGet {},
            expect![[r#"
            40 ac 02                                         @..
        "#]],
        ),
        request(
            ArtifactsOrder { json: Bytes::from_static(b"{}") },
            expect![[r#"
            41 ac 02 02 7b 7d                                A...{}
        "#]],
        ),
        request(
            ArtifactGet {
                store: store(),
                generation: Generation(9),
                number: ArtifactNumber(300),
                manifest: ManifestDigest([0xab; 16]),
                keys: smallvec![Bytes::from_static(b"the")],
            },
            expect![[r#"
                42 ac 02 05 63 61 72 74 73 09 ac 02 ab ab ab ab  B...carts.......
                ab ab ab ab ab ab ab ab ab ab ab ab 01 03 74 68  ..............th
                65                                               e
            "#]],
        ),
    ]
}

pub fn responses() -> Vec<u8> {
    vec![response(
        ArtifactsDocument { json: Bytes::from_static(b"{}") },
        expect![[r#"
            c0 01 02 7b 7d                                   ...{}
        "#]],
    )]
}
