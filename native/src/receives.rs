//! Messages as receives answer with them, from stored records of plain messages.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::wire::{put_bytes, put_head, put_number, put_varint};

const COMPRESSED: i64 = 1;
const COMPRESSION_METHOD: i64 = 0x700;
const CRC32: u64 = 1;
const MD5: u64 = 2;
const IDENTITY: u64 = 1;
const GZIP: u64 = 2;
const NORMAL: u64 = 1;
const PROPERTIES_MAX: usize = 64;
/// The end of the year 9999: `server.wire.times.TIME_MS_MAX`.
const TIME_MS_MAX: i64 = 253_402_300_799_999;

/// Writes messages of topics; holds which properties no plain message has, and which no receiver sees.
#[pyclass(frozen)]
pub struct ReceiveWriter {
    special_names: HashMap<Vec<u8>, Special>,
    born_host: LastHost,
    store_host: LastHost,
}

/// The host that was written last, an object that most records share, and its text.
type LastHost = Mutex<Option<(Py<PyAny>, Option<String>)>>;

#[derive(Clone, Copy)]
enum Special {
    Hidden,
    Unusual,
}

/// What the properties of a plain record say.
#[derive(Default)]
struct Properties<'a> {
    tag: Option<&'a str>,
    keys: Option<&'a str>,
    message_id: Option<&'a str>,
    has_born_timestamp: bool,
    of_user: Vec<(&'a str, &'a str)>,
}

#[pymethods]
impl ReceiveWriter {
    #[new]
    fn new(hidden_names: HashSet<String>, unusual_names: HashSet<String>) -> Self {
        let hidden = hidden_names.into_iter().map(|name| (name.into_bytes(), Special::Hidden));
        let unusual = unusual_names.into_iter().map(|name| (name.into_bytes(), Special::Unusual));
        ReceiveWriter {
            special_names: hidden.chain(unusual).collect(),
            born_host: Mutex::new(None),
            store_host: Mutex::new(None),
        }
    }

    /// The response with each message; None for one that is not plain. Each is record, handle, attempt, hidden for ms.
    fn write<'py>(&self, topic: &str, messages: &Bound<'py, PyAny>, digest: u64) -> PyResult<Bound<'py, PyList>> {
        let py = messages.py();
        let answers = PyList::empty(py);
        for message in messages.try_iter()? {
            match self.message(topic, message?.cast::<PyTuple>()?, digest)? {
                Some(answer) => answers.append(answer)?,
                None => answers.append(py.None())?,
            }
        }
        Ok(answers)
    }
}

impl ReceiveWriter {
    fn message<'py>(
        &self,
        topic: &str,
        delivered: &Bound<'py, PyTuple>,
        digest: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let record = delivered.get_item(0)?;
        let record = record.cast::<PyTuple>()?;
        let raw = record.get_item(16)?;
        let raw = raw.cast::<PyBytes>()?.as_bytes();
        let Some(properties) = self.properties(raw) else { return Ok(None) };
        let body: PyBuffer<u8> = PyBuffer::get(&record.get_item(14)?)?;
        let Some(content) = body.as_slice(delivered.py()) else { return Ok(None) };
        let digest = digest_of(content, digest);
        let Some(system) = self.system_properties(record, delivered, &properties, &digest)? else { return Ok(None) };

        let mut head = Vec::with_capacity(system.len() + raw.len() + topic.len() + 64);
        let mut part = Vec::with_capacity(topic.len() + 8);
        put_bytes(&mut part, 2, topic.as_bytes());
        put_bytes(&mut head, 1, &part);
        for (name, value) in &properties.of_user {
            part.clear();
            put_bytes(&mut part, 1, name.as_bytes());
            put_bytes(&mut part, 2, value.as_bytes());
            put_bytes(&mut head, 2, &part);
        }
        put_bytes(&mut head, 3, &system);
        if !content.is_empty() {
            put_head(&mut head, 4, content.len());
        }
        let mut outer = Vec::with_capacity(16);
        put_head(&mut outer, 2, head.len() + content.len());
        let size = outer.len() + head.len() + content.len();
        let answer = PyBytes::new_with(delivered.py(), size, |answer| {
            let (outer_part, message) = answer.split_at_mut(outer.len());
            outer_part.copy_from_slice(&outer);
            message[..head.len()].copy_from_slice(&head);
            for (to, from) in message[head.len()..].iter_mut().zip(content) {
                *to = from.get();
            }
            Ok(())
        })?;
        Ok(Some(answer))
    }

    /// As `store.record.properties.decode_properties` has them; None for those of no plain message.
    fn properties<'a>(&self, raw: &'a [u8]) -> Option<Properties<'a>> {
        let raw = std::str::from_utf8(raw).ok()?;
        let mut names: Vec<&str> = Vec::with_capacity(16);
        let mut found = Properties::default();
        for entry in raw.split('\x02') {
            let Some((name, value)) = entry.split_once('\x01') else { continue };
            if name.is_empty() || value.is_empty() {
                continue;
            }
            if names.len() == PROPERTIES_MAX || names.contains(&name) {
                return None;
            }
            names.push(name);
            match (name, self.special_names.get(name.as_bytes())) {
                (_, Some(Special::Unusual)) => return None,
                ("TAGS", _) => found.tag = Some(value),
                ("KEYS", _) => found.keys = Some(value),
                ("UNIQ_KEY", _) => found.message_id = Some(value),
                ("BORN_TIMESTAMP", _) => found.has_born_timestamp = true,
                (_, Some(Special::Hidden)) => {}
                _ => found.of_user.push((name, value)),
            }
        }
        found.message_id.is_some().then_some(found)
    }

    /// The fields of `SystemProperties`, in the order of their numbers.
    fn system_properties(
        &self,
        record: &Bound<'_, PyTuple>,
        delivered: &Bound<'_, PyTuple>,
        properties: &Properties<'_>,
        digest: &[u8],
    ) -> PyResult<Option<Vec<u8>>> {
        let number = |index: usize| record.get_borrowed_item(index)?.extract::<i64>();
        let (queue_id, queue_offset, stored_ms) = (number(3)?, number(5)?, number(10)?);
        let handle = delivered.get_borrowed_item(1)?;
        let handle: &str = handle.extract()?;
        let attempt: i64 = delivered.get_borrowed_item(2)?.extract()?;
        let invisible_ms: i64 = delivered.get_borrowed_item(3)?.extract()?;
        let born_host = remembered_text(&self.born_host, record.get_item(9)?)?;
        let store_host = remembered_text(&self.store_host, record.get_item(11)?)?;
        let (Some(born_host), Some(store_host)) = (born_host, store_host) else { return Ok(None) };
        let is_in_range = |value: i64| i32::try_from(value).is_ok_and(|small| small >= 0);
        if !is_in_range(queue_id) || !is_in_range(attempt) || queue_offset < 0 || stored_ms < 0 || invisible_ms < 0 {
            return Ok(None);
        }
        let system_flag = number(7)?;
        let is_compressed = system_flag & COMPRESSED != 0;
        if is_compressed && (system_flag & COMPRESSION_METHOD != 0 || !properties.has_born_timestamp) {
            return Ok(None); // no gRPC client sent it: Python makes the body plain
        }

        let mut out = Vec::with_capacity(384);
        if let Some(tag) = properties.tag {
            put_bytes(&mut out, 1, tag.as_bytes());
        }
        for key in properties.keys.unwrap_or_default().split(' ').filter(|key| !key.is_empty()) {
            put_bytes(&mut out, 2, key.as_bytes());
        }
        put_bytes(&mut out, 3, properties.message_id.unwrap_or_default().as_bytes());
        put_bytes(&mut out, 4, digest);
        put_number(&mut out, 5, if is_compressed { GZIP } else { IDENTITY });
        put_number(&mut out, 6, NORMAL);
        put_time(&mut out, 7, number(8)?.clamp(0, TIME_MS_MAX));
        put_bytes(&mut out, 8, born_host.as_bytes());
        put_time(&mut out, 9, stored_ms.min(TIME_MS_MAX));
        put_bytes(&mut out, 10, store_host.as_bytes());
        put_bytes(&mut out, 12, handle.as_bytes());
        put_number(&mut out, 13, queue_id as u64);
        put_varint(&mut out, 14 << 3);
        put_varint(&mut out, queue_offset as u64);
        put_time(&mut out, 15, invisible_ms);
        put_varint(&mut out, 16 << 3);
        put_varint(&mut out, attempt as u64);
        Ok(Some(out))
    }
}

/// The `Digest` of a body, of type CRC32 or MD5. A CRC32 is in hexadecimal without leading zeros.
fn digest_of(body: &[ReadOnlyCell<u8>], kind: u64) -> Vec<u8> {
    let mut digest = Vec::with_capacity(40);
    if kind == CRC32 {
        let mut hasher = crc32fast::Hasher::new();
        by_pieces(body, |piece| hasher.update(piece));
        put_number(&mut digest, 1, CRC32);
        put_bytes(&mut digest, 2, format!("{:X}", hasher.finalize()).as_bytes());
    } else {
        let mut context = md5::Context::new();
        by_pieces(body, |piece| context.consume(piece));
        put_number(&mut digest, 1, MD5);
        put_bytes(&mut digest, 2, &upper_hex(context.finalize().0));
    }
    digest
}

/// Copies piece by piece, so that a large body is not copied as a whole for its digest.
fn by_pieces(body: &[ReadOnlyCell<u8>], mut consume: impl FnMut(&[u8])) {
    let mut piece = [0u8; 4096];
    for part in body.chunks(piece.len()) {
        let copied = &mut piece[..part.len()];
        for (to, from) in copied.iter_mut().zip(part) {
            *to = from.get();
        }
        consume(copied);
    }
}

/// A point or a span of time: seconds and nanoseconds.
fn put_time(out: &mut Vec<u8>, field: u32, milliseconds: i64) {
    let mut time = Vec::with_capacity(16);
    put_number(&mut time, 1, milliseconds as u64 / 1000);
    put_number(&mut time, 2, milliseconds as u64 % 1000 * 1_000_000);
    put_bytes(out, field, &time);
}

fn remembered_text(last: &LastHost, host: Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, text)) = last.as_ref() {
        if known.is(&host) {
            return Ok(text.clone());
        }
    }
    let text = host_text(&host)?;
    *last = Some((host.unbind(), text.clone()));
    Ok(text)
}

/// As `store.message.host_text`; None for an IPv6 address that Python and Rust may write differently.
fn host_text(host: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let host = host.cast::<PyTuple>()?;
    let address = host.get_item(0)?;
    let address = address.cast::<PyBytes>()?.as_bytes();
    let port: i64 = host.get_borrowed_item(1)?.extract()?;
    if let Ok(bytes) = <[u8; 4]>::try_from(address) {
        return Ok(Some(format!("{}:{port}", Ipv4Addr::from(bytes))));
    }
    let Ok(bytes) = <[u8; 16]>::try_from(address) else { return Ok(None) };
    let address = Ipv6Addr::from(bytes);
    Ok(address.to_ipv4().is_none().then(|| format!("[{address}]:{port}")))
}

fn upper_hex(digest: [u8; 16]) -> [u8; 32] {
    let mut text = [0; 32];
    for (index, byte) in digest.iter().enumerate() {
        text[2 * index] = b"0123456789ABCDEF"[usize::from(byte >> 4)];
        text[2 * index + 1] = b"0123456789ABCDEF"[usize::from(byte & 15)];
    }
    text
}
