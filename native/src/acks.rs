//! A plain AckMessage, which names one delivery by a handle of ours, and its answer.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::handles::read_handle;
use crate::wire::{ok_status, plain_text, put_bytes, resource_name, Fields};

/// `(group, topic, message id, receipt handle, queue number, queue offset, delivery id, expires at ms)`, or None.
#[pyfunction]
pub fn read_ack<'py>(
    py: Python<'py>,
    request: &[u8],
    text_size_max: usize,
    key: &[u8],
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let Some((group, topic, message_id, handle)) = plain(request) else { return Ok(None) };
    if [group, topic, message_id].iter().any(|text| text.len() > text_size_max) {
        return Ok(None);
    }
    let Some((queue_number, queue_offset, delivery_id, expires_at_ms)) = read_handle(handle, key, group, topic) else {
        return Ok(None);
    };
    let fields = (
        PyString::new(py, group),
        PyString::new(py, topic),
        PyString::new(py, message_id),
        PyString::new(py, handle),
        queue_number,
        queue_offset,
        delivery_id,
        expires_at_ms,
    );
    fields.into_pyobject(py).map(Some)
}

fn plain(request: &[u8]) -> Option<(&str, &str, &str, &str)> {
    let (mut group, mut topic, mut delivery) = (None, None, None);
    let mut fields = Fields::of(request);
    while let Some((number, value)) = fields.next()? {
        let of = match number {
            1 => &mut group,
            2 => &mut topic,
            3 => &mut delivery,
            _ => return None,
        };
        if of.replace(value.bytes()?).is_some() {
            return None;
        }
    }
    let (mut message_id, mut handle) = (None, None);
    let mut fields = Fields::of(delivery?);
    while let Some((number, value)) = fields.next()? {
        let of = match number {
            1 => &mut message_id,
            2 => &mut handle,
            _ => return None,
        };
        if of.replace(value.bytes()?).is_some() {
            return None;
        }
    }
    let (group, topic) = (resource_name(group?)?, resource_name(topic?)?);
    Some((plain_text(group)?, plain_text(topic)?, plain_text(message_id.unwrap_or_default())?, plain_text(handle?)?))
}

/// The response to an acknowledgement of one message that is done.
#[pyfunction]
pub fn ack_answer<'py>(py: Python<'py>, message_id: &str, receipt_handle: &str) -> Bound<'py, PyBytes> {
    let status = ok_status();
    let mut entry = Vec::with_capacity(160);
    if !message_id.is_empty() {
        put_bytes(&mut entry, 1, message_id.as_bytes());
    }
    put_bytes(&mut entry, 2, receipt_handle.as_bytes());
    put_bytes(&mut entry, 3, &status);
    let mut answer = Vec::with_capacity(192);
    put_bytes(&mut answer, 1, &status);
    put_bytes(&mut answer, 2, &entry);
    PyBytes::new(py, &answer)
}
