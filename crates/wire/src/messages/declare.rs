//! How the messages of one direction are declared.

/// Declares the messages of one direction: an enumeration whose variants are the message structures.
///
/// A message that version 2 of the protocol gave another field has two kinds: `0xa3 | 0xa0` is sent under the second
/// where that field, a [`Since2`](crate::codec::Since2), is absent.
macro_rules! messages {
    ($(#[$meta:meta])* pub enum $name:ident { $($kind:literal $(| $older:literal)? $variant:ident $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name { $(#[doc = concat!("Kind `", stringify!($kind), "`.")] $variant($variant),)* }

        impl $name {
            /// The first byte of its frame.
            pub fn kind(&self) -> u8 {
                match self { $($name::$variant(_message) => {
                    $(if _message.is_of_version_1() { return $older; })?
                    $kind
                })* }
            }

            /// Makes of it what a link of this version of the protocol carries: what is newer is left out.
            pub fn lower(&mut self, version: u16) {
                if version < 2 {
                    self.lower_codes(version);
                    match self { $($name::$variant(_message) => {
                        $(let _: u8 = $older; _message.lower();)?
                    })* }
                }
            }

            /// Its name in logs and metrics.
            pub fn name(&self) -> &'static str {
                match self { $($name::$variant(_) => $label,)* }
            }

            /// Every kind with its name.
            pub const KINDS: &'static [(u8, &'static str)] = &[$($(($older, $label),)? ($kind, $label),)*];

            pub(in crate::messages) fn fields_bytes_bound(&self) -> usize {
                match self { $($name::$variant(message) => message.bytes_bound(),)* }
            }

            pub(in crate::messages) fn write_fields(&self, out: &mut bytes::BytesMut) {
                match self { $($name::$variant(message) => message.write(out),)* }
            }

            pub(in crate::messages) fn read_fields(kind: u8, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match kind {
                    $($kind => $variant::read(reader).map($name::$variant),)*
                    $($($older => $variant::read(reader.of_version_1()).map($name::$variant),)?)*
                    kind => Err(DecodeError::UnknownKind { kind }),
                }
            }
        }

        $(impl From<$variant> for $name {
            fn from(message: $variant) -> Self {
                $name::$variant(message)
            }
        })*
    };
}
pub(super) use messages;
