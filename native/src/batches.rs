//! What a batch of encoded messages brings into the store: its records, and what is told of each message.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple, PyType};

use crate::records::Record;
use crate::tuples::{new_tuple, require_tuple};

/// Records, dispatch requests, where each message went, and the next offsets of their queues.
type Batch<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyDict>);

/// A batch, or the queues that are unknown.
#[derive(IntoPyObject)]
enum Made<'py> {
    Batch(Batch<'py>),
    Unknown(Bound<'py, PyList>),
}

/// Encodes batches, with objects of three of Python's types.
#[pyclass(frozen)]
pub struct BatchEncoder {
    request_type: Py<PyType>,
    appended_type: Py<PyType>,
    properties_type: Py<PyType>,
}

#[pymethods]
impl BatchEncoder {
    /// The first two are subclasses of tuple without fields of their own; the third is called with stored properties.
    #[new]
    fn new(
        request_type: Bound<'_, PyType>,
        appended_type: Bound<'_, PyType>,
        properties_type: Py<PyType>,
    ) -> PyResult<Self> {
        require_tuple(&request_type)?;
        require_tuple(&appended_type)?;
        Ok(BatchEncoder { request_type: request_type.unbind(), appended_type: appended_type.unbind(), properties_type })
    }

    /// See `store/native.py`.
    fn make<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyList>,
        next_offsets: &Bound<'py, PyDict>,
        physical_offset: i64,
        stored_ms: i64,
        crc_property: bool,
    ) -> PyResult<Made<'py>> {
        let (assigned, unknown) = (PyDict::new(py), PyList::empty(py));
        let mut numbered = Vec::with_capacity(messages.len());
        for message in messages {
            let message = message.cast_into::<PyTuple>()?;
            let queue = message.get_slice(0, 2);
            match next_of(&queue, &assigned, next_offsets)? {
                None => unknown.append(queue)?,
                Some(offset) => {
                    assigned.set_item(&queue, offset + 1)?;
                    numbered.push((message, offset));
                }
            }
        }
        if !unknown.is_empty() {
            return Ok(Made::Unknown(unknown));
        }
        let mut records = Vec::with_capacity(numbered.len());
        let mut end = physical_offset;
        for (message, offset) in &numbered {
            let record = Record::of(message, *offset, end, stored_ms, crc_property)?;
            end += record.size as i64;
            records.push(record);
        }
        let written = PyBytes::new_with(py, (end - physical_offset) as usize, |mut room| {
            for record in &records {
                let (own, rest) = room.split_at_mut(record.size);
                record.write(own);
                room = rest;
            }
            Ok(())
        })?;
        let (no_light_queues, stored_at) = (PyTuple::empty(py).into_any(), stored_ms.into_pyobject(py)?.into_any());
        let properties_type = self.properties_type.bind(py);
        let (requests, appended) = (PyList::empty(py), PyList::empty(py));
        for (record, (message, offset)) in records.iter().zip(&numbered) {
            let offset = offset.into_pyobject(py)?.into_any();
            let at = record.physical_offset.into_pyobject(py)?.into_any();
            let size = record.size.into_pyobject(py)?.into_any();
            let went = [offset.clone(), at.clone(), size.clone(), stored_at.clone()];
            appended.append(new_tuple(self.appended_type.bind(py), went)?)?;
            let fields = [
                message.get_item(0)?,
                message.get_item(1)?,
                offset,
                at,
                size,
                message.get_item(8)?,
                stored_at.clone(),
                message.get_item(7)?,
                properties_type.call1((message.get_item(3)?,))?,
                no_light_queues.clone(),
            ];
            requests.append(new_tuple(self.request_type.bind(py), fields)?)?;
        }
        Ok(Made::Batch((written, requests, appended, assigned)))
    }
}

fn next_of(
    queue: &Bound<'_, PyTuple>,
    assigned: &Bound<'_, PyDict>,
    next_offsets: &Bound<'_, PyDict>,
) -> PyResult<Option<i64>> {
    let known = match assigned.get_item(queue)? {
        None => next_offsets.get_item(queue)?,
        known => known,
    };
    known.map(|offset| offset.extract()).transpose()
}
