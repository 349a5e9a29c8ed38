//! What new messages write into the families of consume queues.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::maxima::{Print, VALUE_SIZE};
use crate::queue_keys::{put_maximum_key, put_prefix, queue_in};

const UNIT_SIZE: usize = 28;

/// For keys that are hashes.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are pairs of numbers");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = self.0.rotate_left(32) ^ number;
    }
}

/// Units and maxima by their keys; queue, queue offset and physical offset of the last request of each queue; which of
/// those have a maximum that is not known.
pub type Staged<'py> = (Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyList>, Vec<usize>);

/// The last request of a queue: the queue as Python has it, queue offset, physical offset.
struct Last<'py> {
    print: Print,
    queue: Bound<'py, PyTuple>,
    maximum_key: Bound<'py, PyBytes>,
    queue_offset: i64,
    physical_offset: i64,
}

/// See `store/native.py`. What is stored of maxima is found by the prints of their keys.
pub fn stage<'py>(
    py: Python<'py>,
    requests: &Bound<'py, PyList>,
    print_of: impl Fn(&[u8]) -> Print,
    known_last: impl Fn(Print) -> Option<i64>,
) -> PyResult<Option<Staged<'py>>> {
    let units = PyList::empty(py);
    let mut lasts: Vec<Last> = Vec::with_capacity(requests.len());
    let mut places: HashMap<(u64, u64), usize, BuildHasherDefault<AsIs>> = HashMap::default();
    places.reserve(requests.len());
    let mut key = Vec::with_capacity(64);
    for request in requests {
        let request = request.cast_into::<PyTuple>()?;
        let Some((topic, number)) = queue_in(&request)? else { return Ok(None) };
        if request.get_borrowed_item(9)?.cast::<PyTuple>()?.len() != 0 {
            return Ok(None);
        }
        let field = |at: usize| request.get_borrowed_item(at)?.extract::<i64>();
        let (queue_offset, physical_offset) = (field(2)?, field(3)?);
        let mut unit = [0; UNIT_SIZE];
        unit[..8].copy_from_slice(&physical_offset.to_be_bytes());
        unit[8..12].copy_from_slice(&request.get_borrowed_item(4)?.extract::<i32>()?.to_be_bytes());
        unit[12..20].copy_from_slice(&field(5)?.to_be_bytes());
        unit[20..].copy_from_slice(&field(6)?.to_be_bytes());
        put_prefix(&mut key, topic, number);
        key.extend_from_slice(&queue_offset.to_be_bytes());
        units.append((PyBytes::new(py, &key), PyBytes::new(py, &unit)))?;
        put_maximum_key(&mut key, topic, number);
        let print = print_of(&key);
        let place = *places.entry(print.into()).or_insert_with(|| {
            let (queue, maximum_key) = (request.get_slice(0, 2), PyBytes::new(py, &key));
            lasts.push(Last { print, queue, maximum_key, queue_offset, physical_offset });
            lasts.len() - 1
        });
        (lasts[place].queue_offset, lasts[place].physical_offset) = (queue_offset, physical_offset);
    }
    let (maxima, last_of, mut unknown) = (PyList::empty(py), PyList::empty(py), Vec::new());
    for (place, Last { print, queue, maximum_key, queue_offset, physical_offset }) in lasts.into_iter().enumerate() {
        match known_last(print) {
            None => unknown.push(place),
            Some(last) if queue_offset < last => {}
            Some(_) => {
                let mut maximum = [0; VALUE_SIZE];
                maximum[..8].copy_from_slice(&physical_offset.to_be_bytes());
                maximum[8..].copy_from_slice(&queue_offset.to_be_bytes());
                maxima.append((maximum_key, PyBytes::new(py, &maximum)))?;
            }
        }
        last_of.append((queue, queue_offset, physical_offset))?;
    }
    Ok(Some((units, maxima, last_of, unknown)))
}
