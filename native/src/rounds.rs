//! What a round of encoded messages brings into the store: its records, and what is told of each message.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple, PyType};

use crate::records::encode;
use crate::tuples::{new_tuple, require_tuple};

/// Records, dispatch requests, where each message went, and the next offsets of their queues.
type Round<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyDict>);

/// Of a record with its message: more than most have, so that the memory of a round is asked for once.
const RECORD_SIZE: usize = 1536;

/// Makes rounds, with objects of three of Python's types.
#[pyclass(frozen)]
pub struct RoundMaker {
    request_type: Py<PyType>,
    appended_type: Py<PyType>,
    properties_type: Py<PyType>,
}

#[pymethods]
impl RoundMaker {
    /// The first two are subclasses of tuple without fields of their own; the third is called with stored properties.
    #[new]
    fn new(
        request_type: Bound<'_, PyType>,
        appended_type: Bound<'_, PyType>,
        properties_type: Py<PyType>,
    ) -> PyResult<Self> {
        require_tuple(&request_type)?;
        require_tuple(&appended_type)?;
        Ok(RoundMaker { request_type: request_type.unbind(), appended_type: appended_type.unbind(), properties_type })
    }

    /// None when the next offset of a queue is not among those that are known.
    fn make<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyList>,
        next_offsets: &Bound<'py, PyDict>,
        physical_offset: i64,
        stored_ms: i64,
        crc_property: bool,
    ) -> PyResult<Option<Round<'py>>> {
        let count = messages.len();
        let assigned = PyDict::new(py);
        let mut numbered = Vec::with_capacity(count);
        for message in messages {
            let message = message.cast_into::<PyTuple>()?;
            let queue = message.get_slice(0, 2);
            let Some(offset) = next_of(&queue, &assigned, next_offsets)? else { return Ok(None) };
            assigned.set_item(&queue, offset + 1)?;
            numbered.push((message, offset));
        }
        let (no_light_queues, stored_at) = (PyTuple::empty(py).into_any(), stored_ms.into_pyobject(py)?.into_any());
        let properties_type = self.properties_type.bind(py);
        let (requests, appended) = (PyList::empty(py), PyList::empty(py));
        let mut out: Vec<u8> = Vec::with_capacity(count * RECORD_SIZE);
        for (message, offset) in numbered {
            let start = out.len();
            let at = physical_offset + start as i64;
            encode(&message, offset, at, stored_ms, crc_property, &mut out)?;
            let offset = offset.into_pyobject(py)?.into_any();
            let at = at.into_pyobject(py)?.into_any();
            let size = (out.len() - start).into_pyobject(py)?.into_any();
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
        Ok(Some((PyBytes::new(py, &out), requests, appended, assigned)))
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
