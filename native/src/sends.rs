//! A plain SendMessage: NORMAL messages of one topic within the limits, from their request to what the store takes in.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::wire::{ok_status, plain_label, plain_text, put_bytes, put_number, resource_name, Fields};

const GZIP: u64 = 2;
const NORMAL: u64 = 1;
const COMPRESSED: u32 = 1;
const TIME_MS_MAX: i64 = 253_402_300_799_999;

/// The fields of a message that a plain one may have.
#[derive(Default)]
struct Plain<'a> {
    topic: &'a [u8],
    body: Option<&'a [u8]>,
    tag: Option<&'a [u8]>,
    keys: Vec<&'a [u8]>,
    message_id: Option<&'a [u8]>,
    born_host: Option<&'a [u8]>,
    born_ms: Option<i64>,
    is_compressed: bool,
    properties: Vec<(&'a [u8], &'a [u8])>,
}

/// Reads the requests of plain sends; holds what is asked about each.
#[pyclass(frozen)]
pub struct SendReader {
    messages_max: usize,
    body_size_max: usize,
    properties_max: usize,
    properties_size_max: usize,
    keys_max: usize,
    topic_size_max: usize,
    message_id_size_max: usize,
    born_host_size_max: usize,
    unusual_names: HashSet<Vec<u8>>,
    unusual_prefix: Vec<u8>,
}

#[pymethods]
impl SendReader {
    /// Sizes in bytes. User properties with one of the names, or the prefix, are not plain.
    #[new]
    #[allow(clippy::too_many_arguments)] // all by name
    fn new(
        messages_max: usize,
        body_size_max: usize,
        properties_max: usize,
        properties_size_max: usize,
        keys_max: usize,
        topic_size_max: usize,
        message_id_size_max: usize,
        born_host_size_max: usize,
        unusual_names: HashSet<String>,
        unusual_prefix: String,
    ) -> Self {
        SendReader {
            messages_max,
            body_size_max,
            properties_max,
            properties_size_max,
            keys_max,
            topic_size_max,
            message_id_size_max,
            born_host_size_max,
            unusual_names: unusual_names.into_iter().map(String::into_bytes).collect(),
            unusual_prefix: unusual_prefix.into_bytes(),
        }
    }

    /// `(topic, [(message id, body, stored properties, tags code, born at ms, system flag), …])`, or None: not plain.
    fn read<'py>(
        &self,
        py: Python<'py>,
        request: &[u8],
        peer: &str,
        now_ms: i64,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let plain = self.plain_messages(request).unwrap_or_default();
        let Some(topic) = plain.first().and_then(|first| plain_label(first.topic)) else {
            return Ok(None);
        };
        let messages = PyList::empty(py);
        for each in &plain {
            let Some(message) = message(py, each, peer, now_ms)? else {
                return Ok(None);
            };
            messages.append(message)?;
        }
        (PyString::new(py, topic), messages).into_pyobject(py).map(Some)
    }
}

impl SendReader {
    fn plain_messages<'a>(&self, request: &'a [u8]) -> Option<Vec<Plain<'a>>> {
        let mut messages: Vec<Plain<'a>> = Vec::new();
        let mut fields = Fields::of(request);
        while let Some((number, value)) = fields.next()? {
            if number != 1 || messages.len() == self.messages_max {
                return None;
            }
            let plain = self.plain(value.bytes()?)?;
            if messages.first().is_some_and(|first| first.topic != plain.topic) {
                return None;
            }
            messages.push(plain);
        }
        Some(messages)
    }

    fn plain<'a>(&self, message: &'a [u8]) -> Option<Plain<'a>> {
        let mut plain = Plain::default();
        let (mut has_topic, mut has_system) = (false, false);
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            let bytes = value.bytes()?;
            match number {
                1 if !has_topic => {
                    has_topic = true;
                    plain.topic = resource_name(bytes)?;
                }
                2 => plain.properties.push(entry(bytes)?),
                3 if !has_system => {
                    has_system = true;
                    read_system(bytes, &mut plain)?;
                }
                4 if plain.body.is_none() => plain.body = Some(bytes),
                _ => return None,
            }
        }
        self.is_within_limits(&plain).then_some(plain)
    }

    fn is_within_limits(&self, plain: &Plain<'_>) -> bool {
        let body_size = plain.body.map_or(0, <[u8]>::len);
        if body_size == 0 || body_size > self.body_size_max || plain.properties.len() > self.properties_max {
            return false;
        }
        if plain.tag.is_some_and(|tag| plain_label(tag).is_none() || tag.contains(&b'|')) {
            return false;
        }
        if plain.keys.len() > self.keys_max || plain.keys.iter().any(|key| plain_label(key).is_none()) {
            return false;
        }
        if plain.topic.len() > self.topic_size_max
            || plain.message_id.is_some_and(|id| id.len() > self.message_id_size_max)
            || plain.born_host.is_some_and(|host| host.len() > self.born_host_size_max)
        {
            return false;
        }
        let mut size = plain.tag.map_or(0, <[u8]>::len) + plain.keys.iter().map(|key| key.len()).sum::<usize>();
        for (index, (name, value)) in plain.properties.iter().enumerate() {
            size += name.len() + value.len();
            if name.is_empty()
                || plain_text(name).is_none()
                || plain_text(value).is_none()
                || name.starts_with(&self.unusual_prefix)
                || self.unusual_names.contains(*name)
                || plain.properties[..index].iter().any(|(other, _)| other == name)
            {
                return false;
            }
        }
        size <= self.properties_size_max
    }
}

/// What the store takes in of a message, or None: not plain.
fn message<'py>(py: Python<'py>, plain: &Plain<'_>, peer: &str, now_ms: i64) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let born_ms = plain.born_ms.unwrap_or(now_ms);
    let (Some(message_id), Some(properties)) =
        (plain.message_id.and_then(plain_label), stored_properties(plain, peer, born_ms))
    else {
        return Ok(None);
    };
    let fields = (
        PyString::new(py, message_id),
        PyBytes::new(py, plain.body.unwrap_or_default()),
        PyBytes::new(py, &properties),
        plain.tag.map_or(0, java_hash),
        born_ms,
        if plain.is_compressed { COMPRESSED } else { 0 },
    );
    fields.into_pyobject(py).map(Some)
}

fn entry(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut name, mut text): (Option<&[u8]>, Option<&[u8]>) = (None, None);
    let mut fields = Fields::of(bytes);
    while let Some((number, value)) = fields.next()? {
        let of = match number {
            1 => &mut name,
            2 => &mut text,
            _ => return None,
        };
        if of.replace(value.bytes()?).is_some() {
            return None;
        }
    }
    Some((name?, text.unwrap_or_default()))
}

/// Fields that say what a plain message says too: the queue and the place are the broker's to choose.
fn read_system<'a>(bytes: &'a [u8], plain: &mut Plain<'a>) -> Option<()> {
    let mut fields = Fields::of(bytes);
    while let Some((number, value)) = fields.next()? {
        let was_there = match number {
            1 => plain.tag.replace(value.bytes()?).is_some(),
            2 => {
                plain.keys.push(value.bytes()?);
                false
            }
            3 => plain.message_id.replace(value.bytes()?).is_some(),
            5 => {
                plain.is_compressed = value.small_number()? == GZIP;
                false
            }
            6 => value.small_number()? > NORMAL,
            7 => plain.born_ms.replace(timestamp_ms(value.bytes()?)?).is_some(),
            8 => plain.born_host.replace(value.bytes()?).is_some(),
            13 => value.small_number().is_none(),
            _ => true,
        };
        if was_there {
            return None;
        }
    }
    if plain.tag.is_some_and(<[u8]>::is_empty) {
        plain.tag = None;
    }
    Some(())
}

fn timestamp_ms(bytes: &[u8]) -> Option<i64> {
    let (mut seconds, mut nanos) = (0i64, 0i64);
    let mut fields = Fields::of(bytes);
    while let Some((number, value)) = fields.next()? {
        let value = i64::try_from(value.number()?).ok()?;
        match number {
            1 => seconds = value,
            2 => nanos = value,
            _ => return None,
        }
    }
    if nanos >= 1_000_000_000 {
        return None;
    }
    let ms = seconds.checked_mul(1000)? + nanos / 1_000_000;
    (ms <= TIME_MS_MAX).then_some(ms)
}

/// As `server.wire.messages.to_message` and `store.record.properties.encode_properties` make them.
fn stored_properties(plain: &Plain<'_>, peer: &str, born_ms: i64) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(256);
    let mut put = |name: &[u8], value: &[u8]| {
        out.extend_from_slice(name);
        out.push(1);
        out.extend_from_slice(value);
        out.push(2);
    };
    for (name, value) in &plain.properties {
        put(name, value);
    }
    if let Some(tag) = plain.tag {
        put(b"TAGS", tag);
    }
    if !plain.keys.is_empty() {
        put(b"KEYS", &plain.keys.join(&b' '));
    }
    put(b"UNIQ_KEY", plain.message_id?);
    put(b"PGROUP", plain.topic);
    put(b"BORN_TIMESTAMP", born_ms.to_string().as_bytes());
    let born_host = match plain.born_host {
        Some(host) if !host.is_empty() => plain_text(host)?,
        _ => plain_text(peer.as_bytes())?,
    };
    put(b"__BORNHOST", born_host.as_bytes());
    Some(out)
}

/// `store.record.properties.java_hash` of an ASCII text.
fn java_hash(tag: &[u8]) -> i64 {
    let hash = tag.iter().fold(0i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(*byte)));
    i64::from(hash)
}

/// The response to a send of messages that are stored in one queue, one behind the other.
#[pyfunction]
pub fn send_answer<'py>(py: Python<'py>, message_ids: Vec<PyBackedStr>, first_offset: u64) -> Bound<'py, PyBytes> {
    let status = ok_status();
    let mut answer = Vec::with_capacity(16 + 80 * message_ids.len());
    put_bytes(&mut answer, 1, &status);
    let mut entry = Vec::with_capacity(64);
    for (message_id, queue_offset) in message_ids.iter().zip(first_offset..) {
        entry.clear();
        put_bytes(&mut entry, 1, &status);
        put_bytes(&mut entry, 2, message_id.as_bytes());
        put_number(&mut entry, 4, queue_offset);
        put_bytes(&mut answer, 2, &entry);
    }
    PyBytes::new(py, &answer)
}
