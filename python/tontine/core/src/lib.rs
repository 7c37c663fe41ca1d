//! The native core of the Python package `tontine`: what must be the same as in `tontine artifact build`.
//!
//! ```text
//! Arrow arrays ─┬▶ Measure ─▶ ranges ─▶ of_keys ─▶ (Spark moves the rows) ─▶ RangeBuild ─▶ chunks ─┐
//!               └──────────────────────────────────────────────────────────────────────────────────┴▶ publish
//! ```
//!
//! Must never: decide anything about bytes by itself. `storage::artifacts` does, for the command and for this.

mod arrays;
mod measure;
mod output;
mod range;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(tontine, TontineError, PyException, "Why an artifact cannot be built.");

/// What is wrong with the records or with what was asked.
fn refused(what: impl ToString) -> PyErr {
    TontineError::new_err(what.to_string())
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TontineError", module.py().get_type::<TontineError>())?;
    module.add_class::<measure::Measure>()?;
    module.add_class::<range::RangeBuild>()?;
    module.add_class::<output::Output>()?;
    module.add_function(wrap_pyfunction!(measure::ranges, module)?)?;
    module.add_function(wrap_pyfunction!(measure::ranges_of, module)?)?;
    module.add_function(wrap_pyfunction!(output::manifest, module)?)?;
    Ok(())
}
