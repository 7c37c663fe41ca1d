//! Front doors: other protocols' ways in. Each turns its commands into the requests of [`crate::front::Front`].

pub mod resp;
