//! Objects of Python's types that are tuples with names for their places.

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// What `new_tuple` asks of a type; that it has no fields of its own is for the caller to know.
pub fn require_tuple(of: &Bound<'_, PyType>) -> PyResult<()> {
    if of.is_subclass_of::<PyTuple>()? {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!("{of} is no tuple")))
}

/// What `tuple.__new__` makes of a subclass, without the tuple that it would be made of.
pub fn new_tuple<'py, const N: usize>(
    of: &Bound<'py, PyType>,
    fields: [Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    let py = of.py();
    // SAFETY: the type is a subclass of tuple, whose memory begins as a tuple's, and has room for as many items as are
    // asked for, empty until they are set; nobody else has seen it by then.
    unsafe {
        let made = Bound::from_owned_ptr_or_err(py, ffi::PyType_GenericAlloc(of.as_type_ptr(), N as isize))?;
        for (place, field) in fields.into_iter().enumerate() {
            ffi::PyTuple_SetItem(made.as_ptr(), place as isize, field.into_ptr());
        }
        Ok(made)
    }
}
