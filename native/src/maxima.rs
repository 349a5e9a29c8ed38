//! What was stored last for queues that were in use: a table of one size, however many queues there are.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::queue_keys::{put_maximum_key, put_prefix, queue_in};
use crate::staging::{stage, Staged};

/// Slots that a key can be in: with twice as many slots as keys one in three hundred finds no room.
const WAYS: usize = 8;
/// Numbers of 64 bits in a slot: two of its key's print, two of its value.
const SLOT: usize = 4;
pub const VALUE_SIZE: usize = 16;

/// Maxima of queues (docs/formats/consume-queue.md) by their keys. Of a key only 128 bits of a keyed hash are kept, so
/// that two of them are taken for one is less likely than that the memory errs.
#[pyclass(frozen)]
pub struct MaximaTable {
    slots: Mutex<Vec<u64>>,
    sets: usize,
    hashers: [RandomState; 2],
}

/// What a key is known by.
pub type Print = [u64; 2];

#[pymethods]
impl MaximaTable {
    /// For that many queues; memory is used as they come, up to 64 bytes for each.
    #[new]
    fn new(queues: usize) -> Self {
        let sets = (2 * queues).div_ceil(WAYS).next_power_of_two();
        // zeros of the operating system: a page that no queue has come to takes no memory
        let slots = Mutex::new(vec![0; sets * WAYS * SLOT]);
        MaximaTable { slots, sets, hashers: [RandomState::new(), RandomState::new()] }
    }

    /// Of each queue, a tuple of topic and number: how keys of its units begin, its maximum's key, and what is stored
    /// under that where it is known. None when one of them can have no keys.
    fn find<'py>(&self, py: Python<'py>, queues: &Bound<'py, PyList>) -> PyResult<Option<Bound<'py, PyList>>> {
        let slots = self.locked();
        let found = PyList::empty(py);
        let mut key = Vec::with_capacity(64);
        for queue in queues {
            let queue = queue.cast_into::<PyTuple>()?;
            let Some((topic, number)) = queue_in(&queue)? else { return Ok(None) };
            put_prefix(&mut key, topic, number);
            let prefix = PyBytes::new(py, &key);
            put_maximum_key(&mut key, topic, number);
            let print = self.print_of(&key);
            let value = find_in(self.set_of(&slots, print), print).map(|value| PyBytes::new(py, &value));
            found.append((prefix, PyBytes::new(py, &key), value))?;
        }
        Ok(Some(found))
    }

    /// Of each queue the offset behind its last entry, where it is known. None when one of them can have no keys.
    fn ends(&self, queues: &Bound<'_, PyList>) -> PyResult<Option<Vec<Option<i64>>>> {
        let slots = self.locked();
        let mut key = Vec::with_capacity(64);
        let mut prints = Vec::with_capacity(queues.len());
        for queue in queues {
            let queue = queue.cast_into::<PyTuple>()?;
            let Some((topic, number)) = queue_in(&queue)? else { return Ok(None) };
            put_maximum_key(&mut key, topic, number);
            prints.push(self.print_of(&key));
        }
        // with nothing between them the processor fetches several slots at once
        let ends = prints.into_iter().map(|print| self.last_in(&slots, print)?.checked_add(1));
        Ok(Some(ends.collect()))
    }

    /// See `store/native.py`.
    fn stage<'py>(&self, py: Python<'py>, requests: &Bound<'py, PyList>) -> PyResult<Option<Staged<'py>>> {
        let slots = self.locked();
        stage(py, requests, |key| self.print_of(key), |print| self.last_in(&slots, print))
    }

    /// What is stored under the keys now.
    fn put_all(&self, pairs: &Bound<'_, PyList>) -> PyResult<()> {
        let mut found = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let pair = pair.cast_into::<PyTuple>()?;
            let (key, value) = (pair.get_borrowed_item(0)?, pair.get_borrowed_item(1)?);
            let (key, value) = (key.cast::<PyBytes>()?, value.cast::<PyBytes>()?);
            let Ok(value) = <[u8; VALUE_SIZE]>::try_from(value.as_bytes()) else {
                return Err(PyValueError::new_err("a maximum has 16 bytes"));
            };
            found.push((self.print_of(key.as_bytes()), value));
        }
        let mut slots = self.locked();
        for (print, value) in found {
            put_into(self.set_of_mut(&mut slots, print), print, &value);
        }
        Ok(())
    }

    /// Forget what is stored under the maximum's key of a queue.
    fn discard(&self, key: &[u8]) {
        let print = self.print_of(key);
        let mut slots = self.locked();
        for slot in self.set_of_mut(&mut slots, print).chunks_exact_mut(SLOT) {
            if slot[..2] == print {
                slot.fill(0);
            }
        }
    }

    fn clear(&self) {
        let mut slots = self.locked();
        *slots = vec![0; slots.len()];
    }
}

impl MaximaTable {
    /// The queue offset of the last entry.
    fn last_in(&self, slots: &[u64], print: Print) -> Option<i64> {
        let value = find_in(self.set_of(slots, print), print)?;
        value.last_chunk().map(|last| i64::from_be_bytes(*last))
    }

    fn locked(&self) -> MutexGuard<'_, Vec<u64>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn print_of(&self, key: &[u8]) -> Print {
        let [first, second] = self.hashers.each_ref().map(|hasher| {
            let mut hasher = hasher.build_hasher();
            hasher.write(key);
            hasher.finish()
        });
        [first | 1, second] // never that of an empty slot
    }

    fn begin_of(&self, print: Print) -> usize {
        (print[1] as usize & (self.sets - 1)) * WAYS * SLOT
    }

    fn set_of<'a>(&self, slots: &'a [u64], print: Print) -> &'a [u64] {
        &slots[self.begin_of(print)..][..WAYS * SLOT]
    }

    fn set_of_mut<'a>(&self, slots: &'a mut [u64], print: Print) -> &'a mut [u64] {
        &mut slots[self.begin_of(print)..][..WAYS * SLOT]
    }
}

fn find_in(set: &[u64], print: Print) -> Option<[u8; VALUE_SIZE]> {
    let slot = set.chunks_exact(SLOT).find(|slot| slot[..2] == print)?;
    let mut value = [0; VALUE_SIZE];
    value[..8].copy_from_slice(&slot[2].to_ne_bytes());
    value[8..].copy_from_slice(&slot[3].to_ne_bytes());
    Some(value)
}

/// Where the key is, else where nothing is, else in place of any other.
fn put_into(set: &mut [u64], print: Print, value: &[u8; VALUE_SIZE]) {
    let is_at = |wanted: Print| set.chunks_exact(SLOT).position(|slot| slot[..2] == wanted);
    let way = is_at(print).or_else(|| is_at([0, 0])).unwrap_or((print[0] >> 32) as usize % WAYS);
    let slot = &mut set[way * SLOT..][..SLOT];
    slot[..2].copy_from_slice(&print);
    slot[2] = u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| value[at]));
    slot[3] = u64::from_ne_bytes([8, 9, 10, 11, 12, 13, 14, 15].map(|at| value[at]));
}
