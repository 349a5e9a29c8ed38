//! A plain AckMessage, which names one delivery by a handle of ours, and its answer.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::wire::{ok_status, plain_text, put_bytes, resource_name, Fields};

const HANDLE_VERSION: u8 = 1;
const HANDLE_SIZE: usize = 37;
const HANDLE_TEXT_SIZE: usize = 52;
/// Where the fields of a handle end, and their checksum begins.
const FIELDS_END: usize = 29;

/// `(group, topic, message id, receipt handle, queue number, queue offset, delivery id, expires at ms)`, or None.
#[pyfunction]
pub fn read_ack<'py>(
    py: Python<'py>,
    request: &[u8],
    text_size_max: usize,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let Some((group, topic, message_id, handle)) = plain(request) else { return Ok(None) };
    if [group, topic, message_id].iter().any(|text| text.len() > text_size_max) {
        return Ok(None);
    }
    let Some(decoded) = decode_handle(handle, group, topic) else { return Ok(None) };
    let fields = (
        PyString::new(py, group),
        PyString::new(py, topic),
        PyString::new(py, message_id),
        PyString::new(py, handle),
        u32::from_be_bytes(part(&decoded, 1)),
        i64::from_be_bytes(part(&decoded, 5)),
        i64::from_be_bytes(part(&decoded, 13)),
        i64::from_be_bytes(part(&decoded, 21)),
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

/// As `server.delivery.receipt_handle.ReceiptHandle.decode`, of one without a lite topic.
fn decode_handle(text: &str, group: &str, topic: &str) -> Option<[u8; HANDLE_SIZE]> {
    if text.len() != HANDLE_TEXT_SIZE || !text.ends_with("==") {
        return None;
    }
    let mut raw = [0; HANDLE_SIZE];
    let (mut bits, mut held, mut at) = (0u32, 0, 0);
    for byte in text.bytes().take(HANDLE_TEXT_SIZE - 2) {
        bits = bits << 6 | sextet(byte)?;
        held += 6;
        if held >= 8 {
            held -= 8;
            raw[at] = (bits >> held) as u8;
            at += 1;
        }
    }
    let mut check = crc32fast::Hasher::new();
    check.update(&raw[..FIELDS_END]);
    check.update(group.as_bytes());
    check.update(b"\0");
    check.update(topic.as_bytes());
    let is_ours = raw[0] == HANDLE_VERSION && check.finalize() == u32::from_be_bytes(part(&raw, FIELDS_END));
    is_ours.then_some(raw)
}

fn sextet(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

fn part<const SIZE: usize>(raw: &[u8; HANDLE_SIZE], at: usize) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes.copy_from_slice(&raw[at..at + SIZE]);
    bytes
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
