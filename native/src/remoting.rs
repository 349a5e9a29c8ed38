//! Sends by the remoting protocol (`server/remoting/sends`): from the frames of plain ones to what the store takes
//! in, and from where that lies to the answers.

use std::borrow::Cow;
use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};

use crate::numbers::i32_at;
use crate::tuples::{new_tuple, require_tuple};

const SEND: i32 = 10;
const SEND_V2: i32 = 310;
const SEND_BATCH: i32 = 320;
const RESPONSE: i32 = 1;
const ONEWAY: i32 = 2;
const JSON: u8 = 0;
const BINARY: u8 = 1;
const BINARY_FIXED_SIZE: usize = 17;
const FIELDS_MAX: usize = 32;
const PROPERTIES_MAX: usize = 64;
const BATCH_HEAD_SIZE: usize = 20;
const DIGITS_MAX: usize = 20;
const UNIQUE_KEY: &[u8] = b"UNIQ_KEY";
const TAGS: &[u8] = b"TAGS";
const CRC_PROPERTY: &[u8] = b"__CRC32#";

/// The fields of a send that are looked at, by their names in the first version of the request and in the second.
const NAMES: [(&[u8], &[u8]); 11] = [
    (b"producerGroup", b"a"),
    (b"topic", b"b"),
    (b"queueId", b"e"),
    (b"sysFlag", b"f"),
    (b"bornTimestamp", b"g"),
    (b"flag", b"h"),
    (b"properties", b"i"),
    (b"reconsumeTimes", b"j"),
    (b"maxReconsumeTimes", b"l"),
    (b"m", b"m"),
    (b"batch", b"batch"),
];

/// What a frame's header says.
struct Command<'a> {
    code: i32,
    opaque: i32,
    flag: i32,
    fields: Vec<(&'a [u8], Cow<'a, [u8]>)>,
}

/// One send, as its answer needs it. The unique key lies in the texts of the run.
struct Send {
    opaque: i32,
    is_oneway: bool,
    is_binary: bool,
    is_batch: bool,
    queue_number: i32,
    messages: usize,
    key_end: usize,
}

/// Reads the frames of plain sends; holds what is asked about each, and what is added.
#[pyclass(frozen)]
pub struct RemotingSendReader {
    message_type: Py<PyType>,
    body_size_max: usize,
    messages_max: usize,
    properties_size_max: usize,
    transaction_mask: i32,
    version: i16,
    added: Vec<(Vec<u8>, Vec<u8>)>,
    answered: Vec<(Vec<u8>, Vec<u8>)>,
    dropped_names: HashSet<Vec<u8>>,
    unusual_names: HashSet<Vec<u8>>,
    unusual_prefix: Vec<u8>,
}

/// Plain sends of one connection that follow each other.
#[pyclass(frozen)]
pub struct RemotingSendRun {
    sends: Vec<Send>,
    keys: Vec<u8>,
    version: i16,
    answered: Vec<(Vec<u8>, Vec<u8>)>,
    /// How many frames these are.
    #[pyo3(get)]
    count: usize,
    /// Bytes of their bodies.
    #[pyo3(get)]
    size: usize,
    /// The highest number of a queue that is asked for, by topic.
    #[pyo3(get)]
    topics: Py<PyDict>,
    #[pyo3(get)]
    messages: Py<PyList>,
}

#[pymethods]
impl RemotingSendReader {
    /// Sizes in bytes. `added` are properties of each single message, `answered` fields of each answer.
    #[new]
    #[pyo3(signature = (
        *, message_type, body_size_max, messages_max, properties_size_max, transaction_mask, version, added, answered,
        dropped_names, unusual_names, unusual_prefix
    ))]
    #[allow(clippy::too_many_arguments)] // all by name
    fn new(
        message_type: Bound<'_, PyType>,
        body_size_max: usize,
        messages_max: usize,
        properties_size_max: usize,
        transaction_mask: i32,
        version: i16,
        added: Vec<(String, String)>,
        answered: Vec<(String, String)>,
        dropped_names: HashSet<String>,
        unusual_names: HashSet<String>,
        unusual_prefix: String,
    ) -> PyResult<Self> {
        require_tuple(&message_type)?;
        let bytes = |pairs: Vec<(String, String)>| -> Vec<(Vec<u8>, Vec<u8>)> {
            pairs.into_iter().map(|(name, value)| (name.into_bytes(), value.into_bytes())).collect()
        };
        Ok(RemotingSendReader {
            message_type: message_type.unbind(),
            body_size_max,
            messages_max,
            properties_size_max,
            transaction_mask,
            version,
            added: bytes(added),
            answered: bytes(answered),
            dropped_names: dropped_names.into_iter().map(String::into_bytes).collect(),
            unusual_names: unusual_names.into_iter().map(String::into_bytes).collect(),
            unusual_prefix: unusual_prefix.into_bytes(),
        })
    }

    /// The plain sends among the frames from `start` on, up to the first other frame.
    fn read<'py>(
        &self,
        py: Python<'py>,
        frames: &Bound<'py, PyList>,
        start: usize,
        born_host: &Bound<'py, PyAny>,
        store_host: &Bound<'py, PyAny>,
        now_ms: i64,
    ) -> PyResult<RemotingSendRun> {
        let mut run = Reading {
            reader: self,
            py,
            hosts: (born_host, store_host),
            now_ms,
            topics: PyDict::new(py),
            topic: None,
            messages: PyList::empty(py),
            sends: Vec::with_capacity(frames.len() - start.min(frames.len())),
            keys: Vec::new(),
            size: 0,
            raw: Vec::new(),
        };
        for frame in frames.iter().skip(start) {
            if run.take(&frame.cast_into::<PyTuple>()?)?.is_none() {
                break;
            }
        }
        Ok(RemotingSendRun {
            count: run.sends.len(),
            size: run.size,
            sends: run.sends,
            keys: run.keys,
            version: self.version,
            answered: self.answered.clone(),
            topics: run.topics.unbind(),
            messages: run.messages.unbind(),
        })
    }
}

#[pymethods]
impl RemotingSendRun {
    /// The answers to the sends, one behind the other. Their messages are those from `start` on; `store_host` is where.
    fn answers<'py>(
        &self,
        py: Python<'py>,
        appended: &Bound<'py, PyList>,
        start: usize,
        store_host: (Vec<u8>, i32),
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (address, port) = store_host;
        let place: String =
            address.iter().chain(&port.to_be_bytes()).map(|byte| format!("{byte:02X}")).collect::<String>();
        let mut out = Vec::with_capacity(self.sends.len() * 320);
        let (mut at, mut key_start) = (start, 0);
        let mut ids = Vec::with_capacity(64);
        for send in &self.sends {
            let key = &self.keys[key_start..send.key_end];
            key_start = send.key_end;
            let first = at;
            at += send.messages;
            if send.is_oneway {
                continue;
            }
            ids.clear();
            for index in first..at {
                let offset: i64 = appended.get_item(index)?.cast::<PyTuple>()?.get_borrowed_item(1)?.extract()?;
                if index > first {
                    ids.push(b',');
                }
                ids.extend_from_slice(place.as_bytes());
                put_hex(&mut ids, offset);
            }
            let queue_offset: i64 = appended.get_item(first)?.cast::<PyTuple>()?.get_borrowed_item(0)?.extract()?;
            let (queue_number, queue_offset) = (send.queue_number.to_string(), queue_offset.to_string());
            let own: [(&[u8], &[u8]); 3] = [
                (b"msgId", &ids),
                (b"queueId", queue_number.as_bytes()),
                (b"queueOffset", queue_offset.as_bytes()),
            ];
            let answered = self.answered.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
            let last: Option<(&[u8], &[u8])> = (!send.is_batch).then_some((b"transactionId", key));
            let fields = own.into_iter().chain(answered).chain(last);
            if send.is_binary {
                self.put_binary(&mut out, send.opaque, fields);
            } else {
                self.put_json(&mut out, send.opaque, fields);
            }
        }
        Ok(PyBytes::new(py, &out))
    }
}

impl RemotingSendRun {
    /// As `quarry_mq.protocol.remoting.frames.write_command` does. No text needs an escape.
    fn put_json<'a>(&self, out: &mut Vec<u8>, opaque: i32, fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(b"{\"code\":0,\"extFields\":{");
        for (index, (name, value)) in fields.enumerate() {
            out.extend_from_slice(if index > 0 { b",\"" } else { b"\"" });
            out.extend_from_slice(name);
            out.extend_from_slice(b"\":\"");
            out.extend_from_slice(value);
            out.push(b'"');
        }
        out.extend_from_slice(b"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
        out.extend_from_slice(opaque.to_string().as_bytes());
        out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
        out.extend_from_slice(self.version.to_string().as_bytes());
        out.push(b'}');
        put_prefix(out, start, JSON);
    }

    fn put_binary<'a>(&self, out: &mut Vec<u8>, opaque: i32, fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&[0; 3]); // the code, and the language JAVA
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(&opaque.to_be_bytes());
        out.extend_from_slice(&RESPONSE.to_be_bytes());
        out.extend_from_slice(&[0; 8]); // no remark; the size of the fields
        let fields_at = out.len();
        for (name, value) in fields {
            out.extend_from_slice(&(name.len() as i16).to_be_bytes());
            out.extend_from_slice(name);
            out.extend_from_slice(&(value.len() as i32).to_be_bytes());
            out.extend_from_slice(value);
        }
        let size = (out.len() - fields_at) as i32;
        out[fields_at - 4..fields_at].copy_from_slice(&size.to_be_bytes());
        put_prefix(out, start, BINARY);
    }
}

/// The prefix of a frame without a body, whose header has been written behind it.
fn put_prefix(out: &mut [u8], start: usize, serialization: u8) {
    let header_size = (out.len() - start - 8) as u32;
    out[start..start + 4].copy_from_slice(&(header_size + 4).to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&(u32::from(serialization) << 24 | header_size).to_be_bytes());
}

fn put_hex(out: &mut Vec<u8>, number: i64) {
    for byte in number.to_be_bytes() {
        for digit in [byte >> 4, byte & 15] {
            out.push(if digit < 10 { b'0' + digit } else { b'A' - 10 + digit });
        }
    }
}

/// A run that is being read.
struct Reading<'a, 'py> {
    reader: &'a RemotingSendReader,
    py: Python<'py>,
    hosts: (&'a Bound<'py, PyAny>, &'a Bound<'py, PyAny>),
    now_ms: i64,
    topics: Bound<'py, PyDict>,
    topic: Option<(Vec<u8>, Bound<'py, PyString>, i32)>,
    messages: Bound<'py, PyList>,
    sends: Vec<Send>,
    keys: Vec<u8>,
    size: usize,
    raw: Vec<u8>,
}

impl<'py> Reading<'_, 'py> {
    /// Takes one more send; None, and nothing is taken, if it is not plain.
    fn take(&mut self, frame: &Bound<'py, PyTuple>) -> PyResult<Option<()>> {
        let serialization: u8 = frame.get_borrowed_item(0)?.extract()?;
        let header = frame.get_borrowed_item(1)?;
        let header: &[u8] = header.extract()?;
        let whole_body = frame.get_item(2)?;
        let body: &[u8] = whole_body.extract()?;
        let command = if serialization == JSON { json_command(header) } else { binary_command(header) };
        let Some(command) = command else { return Ok(None) };
        let Some(fields) = SendFields::of(&command) else { return Ok(None) };
        if command.flag & RESPONSE != 0 || body.len() > self.reader.body_size_max {
            return Ok(None);
        }
        let is_batch = fields.is_batch || command.code == SEND_BATCH;
        let mut parts = Vec::new();
        if is_batch {
            let Some(()) = split_batch(body, self.reader.messages_max, &mut parts) else { return Ok(None) };
        }
        let key_start = self.keys.len();
        let taken = self.messages.len();
        let messages = if is_batch {
            for (flag, body, properties) in &parts {
                let Some(tags_code) = self.store(properties, false) else {
                    self.messages.del_slice(taken, self.messages.len())?;
                    return Ok(None);
                };
                let body = PyBytes::new(self.py, body).into_any();
                self.add(&fields, body, tags_code, *flag)?;
            }
            parts.len()
        } else {
            let Some(tags_code) = self.store(&fields.properties, true) else {
                self.keys.truncate(key_start);
                return Ok(None);
            };
            self.add(&fields, whole_body.clone(), tags_code, fields.flag)?;
            1
        };
        self.note(fields.topic, fields.queue_number)?;
        self.size += body.len();
        self.sends.push(Send {
            opaque: command.opaque,
            is_oneway: command.flag & ONEWAY != 0,
            is_binary: serialization != JSON,
            is_batch,
            queue_number: fields.queue_number,
            messages,
            key_end: self.keys.len(),
        });
        Ok(Some(()))
    }

    fn topic(&mut self, name: &str) -> Bound<'py, PyString> {
        if let Some((known, topic, _)) = &self.topic {
            if known == name.as_bytes() {
                return topic.clone();
            }
        }
        let topic = PyString::new(self.py, name);
        self.topic = Some((name.as_bytes().to_vec(), topic.clone(), -1));
        topic
    }

    /// Note the queue, if its number is the highest.
    fn note(&mut self, name: &str, queue_number: i32) -> PyResult<()> {
        self.topic(name);
        let Some((_, topic, highest)) = &mut self.topic else { return Ok(()) };
        if queue_number > *highest {
            let known = self.topics.get_item(&*topic)?.map_or(Ok(-1), |known| known.extract::<i32>())?;
            *highest = known.max(queue_number);
            self.topics.set_item(&*topic, *highest)?;
        }
        Ok(())
    }

    /// A message, as Python has it, whose stored properties are in `raw`.
    fn add(
        &mut self,
        fields: &SendFields<'_>,
        body: Bound<'py, PyAny>,
        tags_code: i64,
        flag: i32,
    ) -> PyResult<()> {
        let py = self.py;
        let system_flag = fields.system_flag & !self.reader.transaction_mask;
        let message = [
            self.topic(fields.topic).into_any(),
            fields.queue_number.into_pyobject(py)?.into_any(),
            body,
            PyBytes::new(py, &self.raw).into_any(),
            if fields.born_ms < 0 { self.now_ms } else { fields.born_ms }.into_pyobject(py)?.into_any(),
            self.hosts.0.clone(),
            self.hosts.1.clone(),
            system_flag.into_pyobject(py)?.into_any(),
            tags_code.into_pyobject(py)?.into_any(),
            flag.into_pyobject(py)?.into_any(),
        ];
        self.messages.append(new_tuple(self.reader.message_type.bind(py), message)?)
    }

    /// Puts the properties into `raw` as they are stored, and returns their tags code.
    ///
    /// Those of a single message get what is added, and their unique key is noted, which they have to have.
    fn store(&mut self, text: &[u8], is_single: bool) -> Option<i64> {
        let reader = self.reader;
        std::str::from_utf8(text).ok()?;
        let mut names: [&[u8]; PROPERTIES_MAX] = [b""; PROPERTIES_MAX];
        let mut count = 0;
        let mut has_key = false;
        let mut tags_code = 0;
        self.raw.clear();
        for entry in text.split(|byte| *byte == 2) {
            let Some(end) = entry.iter().position(|byte| *byte == 1) else { continue };
            let (name, mut value) = (&entry[..end], &entry[end + 1..]);
            if name.is_empty() || value.is_empty() {
                continue;
            }
            if name.contains(&0) || value.iter().any(|byte| *byte < 2) || count == PROPERTIES_MAX {
                return None;
            }
            if name.starts_with(&reader.unusual_prefix)
                || reader.unusual_names.contains(name)
                || names[..count].contains(&name)
            {
                return None;
            }
            names[count] = name;
            count += 1;
            if name == CRC_PROPERTY {
                continue;
            }
            if is_single {
                if reader.dropped_names.contains(name) {
                    continue;
                }
                if let Some((_, own)) = reader.added.iter().find(|(added, _)| added == name) {
                    value = own;
                }
            }
            match name {
                UNIQUE_KEY if is_single => {
                    // goes into the answer as it is
                    let is_plain = |byte: &u8| (0x20..0x7f).contains(byte) && !matches!(byte, b'"' | b'\\');
                    if !value.iter().all(is_plain) {
                        return None;
                    }
                    self.keys.extend_from_slice(value);
                    has_key = true;
                }
                TAGS => tags_code = java_hash(value),
                _ => {}
            }
            put_property(&mut self.raw, name, value);
        }
        if is_single {
            for (name, value) in &reader.added {
                if !names[..count].contains(&name.as_slice()) {
                    put_property(&mut self.raw, name, value);
                }
            }
        }
        (self.raw.len() <= reader.properties_size_max && has_key == is_single).then_some(tags_code)
    }
}

fn put_property(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.push(1);
    out.extend_from_slice(value);
    out.push(2);
}

/// `store.record.properties.java_hash` of UTF-8.
fn java_hash(tags: &[u8]) -> i64 {
    let add = |hash: i32, unit: i32| hash.wrapping_mul(31).wrapping_add(unit);
    let hash = match std::str::from_utf8(tags) {
        Ok(text) if !tags.is_ascii() => text.encode_utf16().fold(0, |hash, unit| add(hash, i32::from(unit))),
        _ => tags.iter().fold(0, |hash, byte| add(hash, i32::from(*byte))),
    };
    i64::from(hash)
}

/// See `quarry_mq.protocol.remoting.batches`.
fn split_batch<'a>(data: &'a [u8], most: usize, parts: &mut Vec<(i32, &'a [u8], &'a [u8])>) -> Option<()> {
    let mut rest = data;
    while !rest.is_empty() {
        let head = rest.get(..BATCH_HEAD_SIZE)?;
        let size = usize::try_from(i32_at(head, 0)).ok()?;
        let body_end = BATCH_HEAD_SIZE + usize::try_from(i32_at(head, 16)).ok()?;
        let properties_at = body_end + 2;
        let properties_size = rest.get(body_end..properties_at)?;
        let properties_size = i16::from_be_bytes([properties_size[0], properties_size[1]]);
        let end = properties_at + usize::try_from(properties_size).ok()?;
        if size != end || end > rest.len() || parts.len() == most {
            return None;
        }
        parts.push((i32_at(head, 12), &rest[BATCH_HEAD_SIZE..body_end], &rest[properties_at..end]));
        rest = &rest[end..];
    }
    (!parts.is_empty()).then_some(())
}

/// The custom header of a plain send.
struct SendFields<'a> {
    topic: &'a str,
    queue_number: i32,
    system_flag: i32,
    born_ms: i64,
    flag: i32,
    properties: Cow<'a, [u8]>,
    is_batch: bool,
}

impl<'a> SendFields<'a> {
    fn of(command: &'a Command<'a>) -> Option<SendFields<'a>> {
        let is_long = match command.code {
            SEND => true,
            SEND_V2 | SEND_BATCH => false,
            _ => return None,
        };
        let mut found: [Option<&[u8]>; NAMES.len()] = [None; NAMES.len()];
        for (name, value) in &command.fields {
            let place = NAMES.iter().position(|(long, short)| *name == if is_long { *long } else { *short });
            if let Some(place) = place {
                if found[place].replace(value).is_some() {
                    return None;
                }
            }
        }
        let [group, topic, queue, system_flag, born, flag, properties, times, times_max, is_batch, is_named_batch] =
            found;
        let int32 = |value: Option<&[u8]>| i32::try_from(number(value)?.unwrap_or(0)).ok();
        let queue_number = i32::try_from(number(queue)??).ok().filter(|queue| *queue >= 0)?;
        if group?.is_empty() || topic?.is_empty() || int32(times)? > 0 {
            return None;
        }
        if let Some(most) = times_max {
            i32::try_from(number(Some(most))??).ok()?;
        }
        let is_true =
            |value: Option<&[u8]>| value.is_some_and(|value| value == b"1" || value.eq_ignore_ascii_case(b"true"));
        Some(SendFields {
            topic: std::str::from_utf8(topic?).ok()?,
            queue_number,
            system_flag: int32(system_flag)?,
            born_ms: number(born)?.unwrap_or(0),
            flag: int32(flag)?,
            properties: Cow::Borrowed(properties.unwrap_or_default()),
            is_batch: is_true(is_batch) || is_true(is_named_batch),
        })
    }
}

/// As `server.remoting.wire.integer_of`: the inner None if there is no text, the outer one if it is no number.
fn number(value: Option<&[u8]>) -> Option<Option<i64>> {
    let Some(text) = value.filter(|text| !text.is_empty()) else { return Some(None) };
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok().map(Some)
}

fn binary_command(header: &[u8]) -> Option<Command<'_>> {
    if header.len() < BINARY_FIXED_SIZE {
        return None;
    }
    let remark_end = BINARY_FIXED_SIZE + usize::try_from(i32_at(header, 13)).ok()?;
    std::str::from_utf8(header.get(BINARY_FIXED_SIZE..remark_end)?).ok()?;
    let fields_at = remark_end + 4;
    header.get(remark_end..fields_at)?;
    let mut rest = &header[fields_at..];
    if usize::try_from(i32_at(header, remark_end)).ok()? != rest.len() {
        return None;
    }
    let mut fields = Vec::with_capacity(16);
    while !rest.is_empty() {
        let size = rest.get(..2)?;
        let name_end = 2 + usize::try_from(i16::from_be_bytes([size[0], size[1]])).ok()?;
        let value_at = name_end + 4;
        let name = rest.get(2..name_end)?;
        rest.get(name_end..value_at)?;
        let end = value_at.checked_add(usize::try_from(i32_at(rest, name_end)).ok()?)?;
        let value = rest.get(value_at..end)?;
        if std::str::from_utf8(name).is_err() || std::str::from_utf8(value).is_err() || fields.len() == FIELDS_MAX {
            return None;
        }
        if !value.is_empty() {
            fields.push((name, Cow::Borrowed(value)));
        }
        rest = &rest[end..];
    }
    let code = i32::from(i16::from_be_bytes([header[0], header[1]]));
    Some(Command { code, opaque: i32_at(header, 5), flag: i32_at(header, 9), fields })
}

/// A header that has the usual members, each once, and texts in `extFields`.
fn json_command(header: &[u8]) -> Option<Command<'_>> {
    std::str::from_utf8(header).ok()?;
    let mut json = Json { bytes: header, at: 0 };
    let mut command = Command { code: 0, opaque: 0, flag: 0, fields: Vec::new() };
    let mut seen = [false; 8];
    json.object(|json, name| {
        let place = match name {
            b"code" => {
                command.code = json.integer()?;
                0
            }
            b"opaque" => {
                command.opaque = json.integer()?;
                1
            }
            b"flag" => {
                command.flag = json.integer()?;
                2
            }
            b"version" => {
                json.integer()?;
                3
            }
            b"language" => {
                json.text()?;
                4
            }
            b"remark" => {
                json.text()?;
                5
            }
            b"serializeTypeCurrentRPC" => {
                json.text()?;
                6
            }
            b"extFields" => {
                command.fields.reserve(16);
                json.object(|json, name| {
                    if command.fields.len() == FIELDS_MAX {
                        return None;
                    }
                    command.fields.push((name, json.text()?));
                    Some(())
                })?;
                7
            }
            _ => return None,
        };
        (!std::mem::replace(&mut seen[place], true)).then_some(())
    })?;
    json.skip_space();
    (json.at == header.len()).then_some(command)
}

/// Reads JSON whose text is UTF-8; None where it is malformed, or unusual.
struct Json<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Json<'a> {
    fn skip_space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// The next byte that is no space.
    fn next(&mut self) -> Option<u8> {
        self.skip_space();
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Each member is read by a function of its name, which has no escapes.
    fn object(&mut self, mut member: impl FnMut(&mut Self, &'a [u8]) -> Option<()>) -> Option<()> {
        if self.next()? != b'{' {
            return None;
        }
        self.skip_space();
        if self.bytes.get(self.at) == Some(&b'}') {
            self.at += 1;
            return Some(());
        }
        loop {
            let Cow::Borrowed(name) = self.text()? else { return None };
            if self.next()? != b':' {
                return None;
            }
            member(self, name)?;
            match self.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    fn integer(&mut self) -> Option<i32> {
        self.skip_space();
        let start = self.at;
        if self.bytes.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        let digits_at = self.at;
        while matches!(self.bytes.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        let has_leading_zero = self.at - start > 1 && self.bytes.get(digits_at) == Some(&b'0');
        if has_leading_zero || matches!(self.bytes.get(self.at), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        std::str::from_utf8(&self.bytes[start..self.at]).ok()?.parse().ok()
    }

    fn text(&mut self) -> Option<Cow<'a, [u8]>> {
        if self.next()? != b'"' {
            return None;
        }
        let mut start = self.at;
        let mut made: Option<Vec<u8>> = None;
        loop {
            match *self.bytes.get(self.at)? {
                b'"' => {
                    let rest = &self.bytes[start..self.at];
                    self.at += 1;
                    return Some(match made {
                        None => Cow::Borrowed(rest),
                        Some(mut text) => {
                            text.extend_from_slice(rest);
                            Cow::Owned(text)
                        }
                    });
                }
                b'\\' => {
                    let text = made.get_or_insert_with(|| Vec::with_capacity(256));
                    text.extend_from_slice(&self.bytes[start..self.at]);
                    let escape = *self.bytes.get(self.at + 1)?;
                    self.at += 2;
                    match escape {
                        b'"' | b'\\' | b'/' => text.push(escape),
                        b'b' => text.push(8),
                        b'f' => text.push(12),
                        b'n' => text.push(b'\n'),
                        b'r' => text.push(b'\r'),
                        b't' => text.push(b'\t'),
                        b'u' => {
                            let mut unit = 0;
                            for digit in self.bytes.get(self.at..self.at + 4)? {
                                unit = unit << 4 | char::from(*digit).to_digit(16)?;
                            }
                            self.at += 4;
                            // half of a pair is no character
                            let character = char::from_u32(unit)?;
                            text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                        }
                        _ => return None,
                    }
                    start = self.at;
                }
                0..=0x1f => return None,
                _ => self.at += 1,
            }
        }
    }
}
