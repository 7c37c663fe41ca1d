//! How the messages of one direction are declared.

/// Declares the messages of one direction: an enumeration whose variants are the message structures.
macro_rules! messages {
    ($(#[$meta:meta])* pub enum $name:ident { $($kind:literal $variant:ident $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name { $(#[doc = concat!("Kind `", stringify!($kind), "`.")] $variant($variant),)* }

        impl $name {
            /// The first byte of its frame.
            pub fn kind(&self) -> u8 {
                match self { $($name::$variant(_) => $kind,)* }
            }

            /// Its name in logs and metrics.
            pub fn name(&self) -> &'static str {
                match self { $($name::$variant(_) => $label,)* }
            }

            /// Every kind with its name.
            pub const KINDS: &'static [(u8, &'static str)] = &[$(($kind, $label),)*];

            pub(in crate::messages) fn fields_bytes_bound(&self) -> usize {
                match self { $($name::$variant(message) => message.bytes_bound(),)* }
            }

            pub(in crate::messages) fn write_fields(&self, out: &mut bytes::BytesMut) {
                match self { $($name::$variant(message) => message.write(out),)* }
            }

            pub(in crate::messages) fn read_fields(kind: u8, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match kind {
                    $($kind => $variant::read(reader).map($name::$variant),)*
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
