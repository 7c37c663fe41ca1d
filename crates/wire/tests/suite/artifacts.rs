//! The messages about artifacts, byte by byte.

use bytes::Bytes;
use expect_test::expect;
use model::{ArtifactNumber, Generation, ManifestDigest, Token};
use smallvec::smallvec;
use wire::messages::*;

use super::golden::{request, response};
use super::samples::*;

pub fn requests() -> Vec<u8> {
    vec![
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
        request(
            ArtifactScan {
                store: store(),
                generation: Generation(9),
                number: ArtifactNumber(300),
                manifest: ManifestDigest([0xab; 16]),
                first: Token(1 << 62),
                last: Token((1 << 63) - 1),
                after: Some((Token(1 << 62), Bytes::from_static(b"the"))),
                records_max: 100,
                bytes_max: 1 << 20,
            },
            expect![[r#"
                44 ac 02 05 63 61 72 74 73 09 ac 02 ab ab ab ab  D...carts.......
                ab ab ab ab ab ab ab ab ab ab ab ab 00 00 00 00  ................
                00 00 00 40 ff ff ff ff ff ff ff 7f 01 00 00 00  ...@............
                00 00 00 00 40 03 74 68 65 64 80 80 40           ....@.thed..@
            "#]],
        ),
        request(
            ArtifactRead {
                store: store(),
                file: ArtifactFile::Chunk,
                digest: [0xcd; 16],
                offset: 1 << 20,
                bytes_max: 1 << 20,
            },
            expect![[r#"
                43 ac 02 05 63 61 72 74 73 01 cd cd cd cd cd cd  C...carts.......
                cd cd cd cd cd cd cd cd cd cd 80 80 40 80 80 40  ............@..@
            "#]],
        ),
    ]
}

pub fn responses() -> Vec<u8> {
    vec![response(
        ArtifactBytes { file_bytes: 300, bytes: Bytes::from_static(b"part") },
        expect![[r#"
            c1 01 ac 02 04 70 61 72 74                       .....part
        "#]],
    )]
}
