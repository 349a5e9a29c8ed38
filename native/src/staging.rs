//! What new messages write into the families of consume queues.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::maxima::{Print, VALUE_SIZE};
use crate::queue_keys::{name_in, put_maximum_key, put_prefix, queue_in};

pub const UNIT_SIZE: usize = 28;
/// They have one queue.
const LIGHT_QUEUE_NUMBER: i32 = 0;

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

/// What comes together of the requests of a round.
struct Round<'py> {
    py: Python<'py>,
    units: Bound<'py, PyList>,
    lasts: Vec<Last<'py>>,
    places: HashMap<(u64, u64), usize, BuildHasherDefault<AsIs>>,
    key: Vec<u8>,
}

impl<'py> Round<'py> {
    /// One more unit of a queue, which `queue` gives as Python has it.
    fn add(
        &mut self,
        (topic, number): (&str, i32),
        (queue_offset, physical_offset): (i64, i64),
        unit: &Bound<'py, PyBytes>,
        print_of: &impl Fn(&[u8]) -> Print,
        queue: impl FnOnce() -> PyResult<Bound<'py, PyTuple>>,
    ) -> PyResult<()> {
        put_prefix(&mut self.key, topic, number);
        self.key.extend_from_slice(&queue_offset.to_be_bytes());
        self.units.append((PyBytes::new(self.py, &self.key), unit))?;
        put_maximum_key(&mut self.key, topic, number);
        let print = print_of(&self.key);
        match self.places.entry(print.into()) {
            Entry::Occupied(place) => {
                let last = &mut self.lasts[*place.get()];
                (last.queue_offset, last.physical_offset) = (queue_offset, physical_offset);
            }
            Entry::Vacant(place) => {
                place.insert(self.lasts.len());
                let maximum_key = PyBytes::new(self.py, &self.key);
                self.lasts.push(Last { print, queue: queue()?, maximum_key, queue_offset, physical_offset });
            }
        }
        Ok(())
    }
}

/// See `store/native.py`. What is stored of maxima is found by the prints of their keys.
pub fn stage<'py>(
    py: Python<'py>,
    requests: &Bound<'py, PyList>,
    print_of: impl Fn(&[u8]) -> Print,
    known_last: impl Fn(Print) -> Option<i64>,
) -> PyResult<Option<Staged<'py>>> {
    let mut round = Round {
        py,
        units: PyList::empty(py),
        lasts: Vec::with_capacity(requests.len()),
        places: HashMap::default(),
        key: Vec::with_capacity(64),
    };
    round.places.reserve(requests.len());
    for request in requests {
        let request = request.cast_into::<PyTuple>()?;
        let Some(queue) = queue_in(&request)? else { return Ok(None) };
        let field = |at: usize| request.get_borrowed_item(at)?.extract::<i64>();
        let (queue_offset, physical_offset) = (field(2)?, field(3)?);
        let mut unit = [0; UNIT_SIZE];
        unit[..8].copy_from_slice(&physical_offset.to_be_bytes());
        unit[8..12].copy_from_slice(&request.get_borrowed_item(4)?.extract::<i32>()?.to_be_bytes());
        unit[12..20].copy_from_slice(&field(5)?.to_be_bytes());
        unit[20..].copy_from_slice(&field(6)?.to_be_bytes());
        let unit = PyBytes::new(py, &unit);
        round.add(queue, (queue_offset, physical_offset), &unit, &print_of, || Ok(request.get_slice(0, 2)))?;
        let light_queues = request.get_borrowed_item(9)?;
        for light_queue in light_queues.cast::<PyTuple>()?.iter() {
            let light_queue = light_queue.cast_into::<PyTuple>()?;
            let Some(name) = name_in(&light_queue)? else { return Ok(None) };
            let offset = light_queue.get_borrowed_item(1)?.extract::<i64>()?;
            round.add((name, LIGHT_QUEUE_NUMBER), (offset, physical_offset), &unit, &print_of, || {
                (light_queue.get_item(0)?, LIGHT_QUEUE_NUMBER).into_pyobject(py)
            })?;
        }
    }
    let (maxima, last_of, mut unknown) = (PyList::empty(py), PyList::empty(py), Vec::new());
    for (place, Last { print, queue, maximum_key, queue_offset, physical_offset }) in
        round.lasts.into_iter().enumerate()
    {
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
    Ok(Some((round.units, maxima, last_of, unknown)))
}
