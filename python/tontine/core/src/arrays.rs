//! Arrow arrays as they come from Python, without a copy: the C data interface.

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::{Array, BinaryArray, Int32Array, LargeBinaryArray, make_array};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::refused;

/// An array of bytes.
pub(crate) enum Bytes {
    Short(BinaryArray),
    Large(LargeBinaryArray),
}

impl Bytes {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        let array = import(object)?;
        let any = array.as_any();
        match (any.downcast_ref::<BinaryArray>(), any.downcast_ref::<LargeBinaryArray>()) {
            (Some(short), _) => Ok(Bytes::Short(short.clone())),
            (_, Some(large)) => Ok(Bytes::Large(large.clone())),
            _ => Err(refused(format!("an array of {} holds no bytes", array.data_type()))),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Bytes::Short(array) => array.len(),
            Bytes::Large(array) => array.len(),
        }
    }

    /// The bytes at an index below the length, unless they are null.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        match self {
            Bytes::Short(array) => array.is_valid(index).then(|| array.value(index)),
            Bytes::Large(array) => array.is_valid(index).then(|| array.value(index)),
        }
    }
}

/// An array of lengths.
pub(crate) fn lengths(object: &Bound<'_, PyAny>) -> PyResult<Int32Array> {
    let array = import(object)?;
    let lengths = array.as_any().downcast_ref::<Int32Array>().cloned();
    lengths.ok_or_else(|| refused(format!("an array of {} holds no lengths", array.data_type())))
}

fn import(object: &Bound<'_, PyAny>) -> PyResult<arrow_array::ArrayRef> {
    let capsules = object.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
    let schema = capsules.get_item(0)?.cast_into::<PyCapsule>()?;
    let array = capsules.get_item(1)?.cast_into::<PyCapsule>()?;
    let schema = schema.pointer_checked(Some(c"arrow_schema"))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(c"arrow_array"))?.cast::<FFI_ArrowArray>();
    // SAFETY: capsules of these names hold these structures, and moving out of them is how they are consumed: what is
    // left in them is marked as released.
    let data = unsafe {
        let schema = FFI_ArrowSchema::from_raw(schema.as_ptr());
        from_ffi(FFI_ArrowArray::from_raw(array.as_ptr()), &schema)
    };
    Ok(make_array(data.map_err(refused)?))
}
