//! The frames of unary calls in what a peer has sent: a header block of which all is known to be sound, and the one
//! message in one frame, often right behind it (RFC 9113; gRPC over HTTP/2). Anything else is for the engine in Python,
//! which knows the rules.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

const FRAME_HEAD_SIZE: usize = 9;
const FRAME_SIZE_MAX: usize = 16_384;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PRIORITY: u8 = 0x20;
const PRIORITY_SIZE: usize = 5;
const MESSAGE_PREFIX_SIZE: usize = 5;
const CONTENT_TYPE: &[u8] = b"content-type";
const CONTENT_LENGTH: &[u8] = b"content-length";
const NOT_KEPT: &[u8] = b"";

/// Fields at the start of header blocks that are checked already.
struct Run {
    block: Vec<u8>,
    path: Py<PyBytes>,
    fields: Py<PyDict>,
    has_content_type: bool,
}

/// What one connection has learned of its peer's header blocks, as `HeadReader` tells it.
#[pyclass]
pub struct CallScanner {
    block_size_max: usize,
    huffman_coded: Py<PyAny>,
    runs: Vec<Run>,
    names: HashMap<Vec<u8>, Py<PyBytes>>,
    fields: HashMap<Vec<u8>, Py<PyBytes>>,
}

/// What the next frame is, or the next two: stream id, path and fields of its header block, where its message begins,
/// without the prefix, and where the last of the frames ends. Without a block, or without a message, the parts of that
/// are None.
type Found<'py> = (u32, Option<(Py<PyBytes>, Bound<'py, PyDict>)>, Option<usize>, usize);

#[pymethods]
impl CallScanner {
    /// `huffman_coded` wraps values that are Huffman coded.
    #[new]
    fn new(block_size_max: usize, huffman_coded: Py<PyAny>) -> Self {
        CallScanner { block_size_max, huffman_coded, runs: Vec::new(), names: HashMap::new(), fields: HashMap::new() }
    }

    fn learn_run(&mut self, py: Python<'_>, block: Vec<u8>, path: Py<PyBytes>, fields: Py<PyDict>) -> PyResult<()> {
        let known = fields.bind(py);
        if !known.contains(PyBytes::new(py, CONTENT_LENGTH))? {
            let has_content_type = known.contains(PyBytes::new(py, CONTENT_TYPE))?;
            self.runs.push(Run { block, path, fields, has_content_type });
        }
        Ok(())
    }

    fn evict_run(&mut self, block: &[u8]) {
        self.runs.retain(|run| run.block != block);
    }

    fn learn_name(&mut self, raw_name: Vec<u8>, name: Py<PyBytes>) {
        self.names.insert(raw_name, name);
    }

    fn learn_field(&mut self, raw_field: Vec<u8>, name: Py<PyBytes>) {
        self.fields.insert(raw_field, name);
    }

    /// What is found from `position` on, in up to so many frames with up to so many header blocks: up to the first frame
    /// of anything else, or that is not there whole.
    fn scan<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        position: usize,
        last_stream_id: u32,
        bounds: (usize, usize),
        message_size_max: usize,
    ) -> PyResult<Vec<Found<'py>>> {
        let (frames_max, blocks_max) = bounds;
        let mut found = Vec::new();
        let (mut position, mut last_stream_id) = (position, last_stream_id);
        let (mut frames, mut blocks) = (0, 0);
        while frames < frames_max {
            let Some(frame) = Frame::at(data, position) else {
                break;
            };
            if frame.kind == DATA {
                let Some(start) = frame.message_start(data, message_size_max) else {
                    break;
                };
                found.push((frame.stream_id, None, Some(start), frame.end));
                position = frame.end;
                frames += 1;
                continue;
            }
            let Some(block) = frame.block(data) else { break };
            if frame.stream_id <= last_stream_id || block.len() > self.block_size_max || blocks == blocks_max {
                break;
            }
            let Some(head) = self.head(py, block)? else {
                break;
            };
            last_stream_id = frame.stream_id;
            (frames, blocks, position) = (frames + 1, blocks + 1, frame.end);
            let message = Frame::at(data, position)
                .filter(|next| frames < frames_max && next.kind == DATA && next.stream_id == frame.stream_id);
            let start = message.as_ref().and_then(|message| message.message_start(data, message_size_max));
            if let (Some(message), Some(_)) = (message, start) {
                (frames, position) = (frames + 1, message.end);
            }
            found.push((frame.stream_id, Some(head), start, position));
        }
        Ok(found)
    }
}

impl CallScanner {
    /// Path and fields of a block of which everything is known to be sound.
    fn head<'py>(&mut self, py: Python<'py>, block: &[u8]) -> PyResult<Option<(Py<PyBytes>, Bound<'py, PyDict>)>> {
        let Some(index) = self.runs.iter().position(|run| block.starts_with(&run.block)) else {
            return Ok(None);
        };
        if index > 0 {
            self.runs.swap(0, index);
        }
        let run = &self.runs[0];
        let fields = run.fields.bind(py).copy()?;
        let mut has_content_type = run.has_content_type;
        let mut rest = &block[run.block.len()..];
        while !rest.is_empty() {
            let Some(field) = RawField::first_of(rest) else {
                return Ok(None);
            };
            let Some(name) = self.names.get(&rest[..field.name_end]).or_else(|| self.fields.get(&rest[..field.end]))
            else {
                return Ok(None);
            };
            let name = name.bind(py);
            match name.as_bytes() {
                CONTENT_LENGTH => return Ok(None),
                CONTENT_TYPE => has_content_type = true,
                NOT_KEPT => {
                    rest = &rest[field.end..];
                    continue;
                }
                _ => {}
            }
            let value = PyBytes::new(py, &rest[field.value_start..field.end]);
            if field.is_huffman_coded {
                fields.set_item(name, self.huffman_coded.bind(py).call1((value,))?)?;
            } else {
                fields.set_item(name, value)?;
            }
            rest = &rest[field.end..];
        }
        Ok(has_content_type.then(|| (run.path.clone_ref(py), fields)))
    }
}

struct Frame {
    kind: u8,
    flags: u8,
    stream_id: u32,
    start: usize,
    end: usize,
}

impl Frame {
    /// The frame, if all of it is there.
    fn at(data: &[u8], position: usize) -> Option<Frame> {
        let head = data.get(position..position + FRAME_HEAD_SIZE)?;
        let size = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let start = position + FRAME_HEAD_SIZE;
        if size > FRAME_SIZE_MAX || start + size > data.len() {
            return None;
        }
        let stream_id = stream_id_in(&head[5..]);
        Some(Frame { kind: head[3], flags: head[4], stream_id, start, end: start + size })
    }

    /// The header block of a request that goes on, if it is all in this frame.
    fn block<'a>(&self, data: &'a [u8]) -> Option<&'a [u8]> {
        if self.kind != HEADERS || self.flags & !PRIORITY != END_HEADERS || self.stream_id & 1 == 0 {
            return None;
        }
        let payload = &data[self.start..self.end];
        if self.flags & PRIORITY == 0 {
            return Some(payload);
        }
        // Java's library says one with each request; it may not name the stream itself (RFC 9113 §5.3)
        let depends_on = stream_id_in(payload.get(..PRIORITY_SIZE)?);
        (depends_on != self.stream_id).then(|| &payload[PRIORITY_SIZE..])
    }

    /// Where the message begins that is all of a request, uncompressed, if it is such a one.
    fn message_start(&self, data: &[u8], size_max: usize) -> Option<usize> {
        if self.flags != END_STREAM {
            return None;
        }
        let start = self.start + MESSAGE_PREFIX_SIZE;
        if start > self.end {
            return None;
        }
        let prefix = &data[self.start..start];
        let size = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        (prefix[0] == 0 && start + size == self.end && size <= size_max).then_some(start)
    }
}

fn stream_id_in(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) & 0x7FFF_FFFF
}

/// Where the parts of one field lie that is no reference to a whole field of a table (RFC 7541 §6.2).
struct RawField {
    name_end: usize,
    value_start: usize,
    end: usize,
    is_huffman_coded: bool,
}

impl RawField {
    fn first_of(block: &[u8]) -> Option<RawField> {
        let first = *block.first()?;
        if first & 0x80 != 0 {
            return None;
        }
        let mask = if first & 0x40 != 0 { 0x3F } else { 0x0F };
        let name_end = if first & mask == 0 {
            2 + usize::from(block.get(1)? & 0x7F)
        } else if first & mask == mask {
            2
        } else {
            1
        };
        let size_at = *block.get(name_end)?;
        let (size, value_start) = integer(block, name_end)?;
        let end = value_start.checked_add(size)?;
        if end > block.len() {
            return None;
        }
        Some(RawField { name_end, value_start, end, is_huffman_coded: size_at & 0x80 != 0 })
    }
}

/// A length of up to three bytes (RFC 7541 §5.1), and where it ends.
fn integer(block: &[u8], position: usize) -> Option<(usize, usize)> {
    let first = usize::from(block[position] & 0x7F);
    if first < 0x7F {
        return Some((first, position + 1));
    }
    let low = usize::from(*block.get(position + 1)?);
    if low < 0x80 {
        return Some((0x7F + low, position + 2));
    }
    let high = usize::from(*block.get(position + 2)?);
    (high < 0x80).then_some((0x7F + (low & 0x7F) + (high << 7), position + 3))
}
