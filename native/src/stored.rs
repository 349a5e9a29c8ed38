//! Records as they are read from the commit log (docs/formats/commit-log.md), those that are whole and usual.

use std::sync::Mutex;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PyString, PyTuple, PyType};

use crate::numbers::{i32_at, i64_at};
use crate::tuples::{new_tuple, require_tuple};
use crate::wire::plain_text;

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const BORN_HOST_V6: i32 = 0x10;
const STORE_HOST_V6: i32 = 0x20;
const CRC_PROPERTY_SIZE: usize = 20;
const CRC_PROPERTY_START: &[u8] = b"\x02__CRC32#\x01";
const PORT_MAXIMUM: i32 = 65_535;
/// Between two records that are fetched together lie at most these bytes: more cost as much as another call.
const GAP_MAX: usize = 16 * 1024;
/// The bytes that are fetched together.
const RUN_MAX: usize = 1024 * 1024;

/// An object that was made of the same bytes last.
type Last = Mutex<Option<(Vec<u8>, Py<PyAny>)>>;

/// Reads records as objects of two of Python's types.
#[pyclass(frozen)]
pub struct RecordReader {
    record_type: Py<PyType>,
    host_type: Py<PyType>,
    /// The topic of records that replace damaged ones: they are not read together with others.
    unlike: String,
    topic: Last,
    born_host: Last,
    store_host: Last,
}

/// What a record holds, but for its place.
struct Record<'a> {
    size: i32,
    magic: u32,
    body_crc: u32,
    queue_number: i32,
    flag: i32,
    queue_offset: i64,
    system_flag: i32,
    born_ms: i64,
    born_host: &'a [u8],
    stored_ms: i64,
    store_host: &'a [u8],
    reconsume_times: i32,
    prepared_transaction_offset: i64,
    body_start: usize,
    body_end: usize,
    topic: &'a str,
    properties: &'a [u8],
}

#[pymethods]
impl RecordReader {
    /// Both types are subclasses of tuple without fields of their own.
    #[new]
    fn new(record_type: Bound<'_, PyType>, host_type: Bound<'_, PyType>, unlike: String) -> PyResult<Self> {
        require_tuple(&record_type)?;
        require_tuple(&host_type)?;
        let (topic, born_host, store_host) = (Mutex::new(None), Mutex::new(None), Mutex::new(None));
        Ok(RecordReader {
            record_type: record_type.unbind(),
            host_type: host_type.unbind(),
            unlike,
            topic,
            born_host,
            store_host,
        })
    }

    /// The record at a position of the segment, every checksum checked; None for what is not plain.
    fn read<'py>(
        &self,
        segment: &Bound<'py, PyAny>,
        position: usize,
        physical_offset: i64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let buffer: PyBuffer<u8> = PyBuffer::get(segment)?;
        let Some(bytes) = bytes_of(segment.py(), &buffer) else { return Ok(None) };
        let found = bytes.get(position..).and_then(|rest| decode(rest, physical_offset));
        found.map(|record| self.object(segment, position, physical_offset, &record)).transpose()
    }

    /// The records of these entries, as `read` has them. The rest is as for `join`.
    fn read_all<'py>(
        &self,
        segment: &Bound<'py, PyAny>,
        base: i64,
        end: i64,
        entries: &Bound<'py, PyList>,
        fetch: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let buffer: PyBuffer<u8> = PyBuffer::get(segment)?;
        let Some(bytes) = bytes_of(segment.py(), &buffer) else { return Ok(None) };
        let Some(places) = fetched_places(bytes.len(), base, end, entries, fetch)? else { return Ok(None) };
        let found = PyList::empty(segment.py());
        for (position, part) in places {
            let at = base + position as i64;
            let Some(record) = decode_whole(&bytes[position..part], at, &self.unlike) else { return Ok(None) };
            found.append(self.object(segment, position, at, &record)?)?;
        }
        Ok(Some(found))
    }

    /// The records of these entries, one behind the other, every checksum checked. None if one is not plain, has
    /// the topic `unlike`, or does not lie whole in the segment, which begins at `base`, and below `end`. `fetch` is called with the
    /// position and the size of each part of the segment before it is read.
    fn join<'py>(
        &self,
        segment: &Bound<'py, PyAny>,
        base: i64,
        end: i64,
        entries: &Bound<'py, PyList>,
        fetch: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let buffer: PyBuffer<u8> = PyBuffer::get(segment)?;
        let Some(bytes) = bytes_of(segment.py(), &buffer) else { return Ok(None) };
        let Some(places) = fetched_places(bytes.len(), base, end, entries, fetch)? else { return Ok(None) };
        if places.iter().any(|(from, to)| decode_whole(&bytes[*from..*to], base + *from as i64, &self.unlike).is_none()) {
            return Ok(None);
        }
        PyBytes::new_with(segment.py(), places.iter().map(|(from, to)| to - from).sum(), |mut room| {
            for (from, to) in places {
                let (own, rest) = room.split_at_mut(to - from);
                own.copy_from_slice(&bytes[from..to]);
                room = rest;
            }
            Ok(())
        })
        .map(Some)
    }
}

/// The bytes of a segment, whose pages must be fetched before they are read.
fn bytes_of<'a>(py: Python<'a>, buffer: &'a PyBuffer<u8>) -> Option<&'a [u8]> {
    let cells = buffer.as_slice(py)?;
    // SAFETY: a record that was appended is never written again, and the buffer lives as long as the slice
    Some(unsafe { std::slice::from_raw_parts(cells.as_ptr().cast::<u8>(), cells.len()) })
}

/// Where the records of entries begin and end in a segment, once all of their bytes are fetched. None if one of them
/// does not lie in the segment and below `end`.
fn fetched_places(
    length: usize,
    base: i64,
    end: i64,
    entries: &Bound<'_, PyList>,
    fetch: &Bound<'_, PyAny>,
) -> PyResult<Option<Vec<(usize, usize)>>> {
    let mut places = Vec::with_capacity(entries.len());
    for entry in entries {
        let entry = entry.cast_into::<PyTuple>()?;
        let at: i64 = entry.get_borrowed_item(1)?.extract()?;
        let size: i64 = entry.get_borrowed_item(2)?.extract()?;
        let Some(position) = at.checked_sub(base).and_then(|position| usize::try_from(position).ok()) else {
            return Ok(None);
        };
        let Ok(size) = usize::try_from(size) else { return Ok(None) };
        if position > length || size > length - position || at + size as i64 > end {
            return Ok(None);
        }
        places.push((position, position + size));
    }
    let mut run: Option<(usize, usize)> = None;
    for (from, to) in &places {
        run = match run {
            Some((first, last)) if *from >= first && *from <= last + GAP_MAX && *to <= first + RUN_MAX => {
                Some((first, last.max(*to)))
            }
            Some((first, last)) => {
                fetch.call1((first, last - first))?;
                Some((*from, *to))
            }
            None => Some((*from, *to)),
        };
    }
    if let Some((first, last)) = run {
        fetch.call1((first, last - first))?;
    }
    Ok(Some(places))
}

/// The record that these bytes are. None for one that is not plain, is shorter than the bytes, or has this topic.
fn decode_whole<'a>(bytes: &'a [u8], physical_offset: i64, unlike: &str) -> Option<Record<'a>> {
    decode(bytes, physical_offset).filter(|record| record.size as usize == bytes.len() && record.topic != unlike)
}

impl RecordReader {
    fn object<'py>(
        &self,
        segment: &Bound<'py, PyAny>,
        position: usize,
        physical_offset: i64,
        record: &Record<'_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = segment.py();
        // not by `PySlice::new`, which never frees the numbers (PyO3 0.27)
        let slice = py.get_type::<PySlice>().call1((position + record.body_start, position + record.body_end))?;
        let body = segment.get_item(slice)?;
        let topic = remembered(py, &self.topic, record.topic.as_bytes(), || {
            Ok(PyString::new(py, record.topic).into_any().unbind())
        })?;
        let fields = [
            record.size.into_pyobject(py)?.into_any(),
            record.magic.into_pyobject(py)?.into_any(),
            record.body_crc.into_pyobject(py)?.into_any(),
            record.queue_number.into_pyobject(py)?.into_any(),
            record.flag.into_pyobject(py)?.into_any(),
            record.queue_offset.into_pyobject(py)?.into_any(),
            physical_offset.into_pyobject(py)?.into_any(),
            record.system_flag.into_pyobject(py)?.into_any(),
            record.born_ms.into_pyobject(py)?.into_any(),
            self.host(py, &self.born_host, record.born_host)?,
            record.stored_ms.into_pyobject(py)?.into_any(),
            self.host(py, &self.store_host, record.store_host)?,
            record.reconsume_times.into_pyobject(py)?.into_any(),
            record.prepared_transaction_offset.into_pyobject(py)?.into_any(),
            body,
            topic,
            PyBytes::new(py, record.properties).into_any(),
        ];
        new_tuple(self.record_type.bind(py), fields)
    }

    /// Of an address and its port, which are behind each other.
    fn host<'py>(&self, py: Python<'py>, last: &Last, stored: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        remembered(py, last, stored, || {
            let (address, port) = stored.split_at(stored.len() - 4);
            let fields = [PyBytes::new(py, address).into_any(), i32_at(port, 0).into_pyobject(py)?.into_any()];
            Ok(new_tuple(self.host_type.bind(py), fields)?.unbind())
        })
    }
}

fn remembered<'py>(
    py: Python<'py>,
    last: &Last,
    bytes: &[u8],
    make: impl FnOnce() -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Ok(known) = last.lock() {
        if let Some((of, made)) = known.as_ref() {
            if of == bytes {
                return Ok(made.bind(py).clone());
            }
        }
    }
    let made = make()?;
    let found = made.bind(py).clone();
    if let Ok(mut known) = last.lock() {
        *known = Some((bytes.to_vec(), made));
    }
    Ok(found)
}

/// The record at the beginning of the bytes, which go on to the segment's end.
fn decode(bytes: &[u8], physical_offset: i64) -> Option<Record<'_>> {
    if bytes.len() < 40 {
        return None;
    }
    let (size, magic, system_flag) = (i32_at(bytes, 0), i32_at(bytes, 4) as u32, i32_at(bytes, 36));
    let bytes = bytes.get(..usize::try_from(size).ok()?)?;
    let topic_length_size = match magic {
        MAGIC_V1 => 1,
        MAGIC_V2 => 2,
        _ => return None,
    };
    let born_end = 48 + if system_flag & BORN_HOST_V6 == 0 { 8 } else { 20 };
    let store_end = born_end + 8 + if system_flag & STORE_HOST_V6 == 0 { 8 } else { 20 };
    let body_start = store_end + 16;
    if bytes.len() < body_start {
        return None;
    }
    let body_end = body_start + usize::try_from(i32_at(bytes, store_end + 12)).ok()?;
    let topic_start = body_end + topic_length_size;
    let topic_length = match bytes.get(body_end..topic_start)? {
        [length] => i16::from(*length as i8),
        length => i16::from_be_bytes([length[0], length[1]]),
    };
    let topic_end = topic_start + usize::try_from(topic_length).ok().filter(|length| *length > 0)?;
    let topic = plain_text(bytes.get(topic_start..topic_end)?)?;
    let properties_length = bytes.get(topic_end..topic_end + 2)?;
    let properties = &bytes[topic_end + 2..];
    let record = Record {
        size,
        magic,
        body_crc: i32_at(bytes, 8) as u32,
        queue_number: i32_at(bytes, 12),
        flag: i32_at(bytes, 16),
        queue_offset: i64_at(bytes, 20),
        system_flag,
        born_ms: i64_at(bytes, 40),
        born_host: &bytes[48..born_end],
        stored_ms: i64_at(bytes, born_end),
        store_host: &bytes[born_end + 8..store_end],
        reconsume_times: i32_at(bytes, store_end),
        prepared_transaction_offset: i64_at(bytes, store_end + 4),
        body_start,
        body_end,
        topic,
        properties,
    };
    let lengths_fit = i16::from_be_bytes([properties_length[0], properties_length[1]]) as usize == properties.len();
    let is_whole = lengths_fit
        && i64_at(bytes, 28) == physical_offset
        && is_port(i32_at(bytes, born_end - 4))
        && is_port(i32_at(bytes, store_end - 4))
        && record.queue_number >= 0
        && (0..i64::MAX).contains(&record.queue_offset)
        && record.stored_ms >= 0
        && !properties.contains(&0)
        && checksum(&bytes[body_start..body_end]) == record.body_crc
        && matches_crc_property(bytes, properties);
    is_whole.then_some(record)
}

/// Whether the properties end in the checksum of all before it, behind another property.
fn matches_crc_property(record: &[u8], properties: &[u8]) -> bool {
    let Some(start) = properties.len().checked_sub(CRC_PROPERTY_SIZE + 1) else { return false };
    if !properties[start..].starts_with(CRC_PROPERTY_START) || properties.last() != Some(&2) {
        return false;
    }
    let mut value = checksum(&record[..record.len() - CRC_PROPERTY_SIZE]);
    let digits = &properties[start + CRC_PROPERTY_START.len()..properties.len() - 1];
    digits.iter().all(|digit| {
        let is_right = *digit == b'0' + (value % 10) as u8;
        value /= 10;
        is_right
    })
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7FFF_FFFF
}

fn is_port(port: i32) -> bool {
    (0..=PORT_MAXIMUM).contains(&port)
}
