//! The Redis protocol, versions 2 and 3.
