//! Entries of consume queues, of their keys and values in RocksDB.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyTuple, PyType};

use crate::numbers::{i32_at, i64_at};
use crate::staging::UNIT_SIZE;
use crate::tuples::{new_tuple, require_tuple};

/// Makes entries, which are objects of a type of Python's.
#[pyclass(frozen)]
pub struct EntryMaker {
    entry_type: Py<PyType>,
}

#[pymethods]
impl EntryMaker {
    /// The type is a subclass of tuple without fields of its own.
    #[new]
    fn new(entry_type: Bound<'_, PyType>) -> PyResult<Self> {
        require_tuple(&entry_type)?;
        Ok(EntryMaker { entry_type: entry_type.unbind() })
    }

    /// See `store/native.py`.
    fn make<'py>(&self, py: Python<'py>, pairs: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let entry_type = self.entry_type.bind(py);
        let mut entries = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let pair = pair.cast_into::<PyTuple>()?;
            let (key, value) = (pair.get_borrowed_item(0)?, pair.get_borrowed_item(1)?);
            let Some(fields) = fields_of(key.cast::<PyBytes>()?.as_bytes(), value.cast::<PyBytes>()?.as_bytes()) else {
                return Err(PyValueError::new_err("a unit has a key that ends in 8 bytes, and 28 bytes"));
            };
            entries.push(new_tuple(entry_type, fields.map(|field| PyInt::new(py, field).into_any()))?);
        }
        Ok(entries)
    }
}

/// Queue offset, physical offset, record size, tags code, store timestamp in ms.
fn fields_of(key: &[u8], value: &[u8]) -> Option<[i64; 5]> {
    if value.len() != UNIT_SIZE {
        return None;
    }
    let queue_offset = i64_at(key, key.len().checked_sub(8)?);
    Some([queue_offset, i64_at(value, 0), i32_at(value, 8).into(), i64_at(value, 12), i64_at(value, 20)])
}
