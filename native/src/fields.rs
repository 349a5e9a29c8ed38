//! How many fields a request has, counted on the wire before anything is made of it.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a length-delimited field holds, by its number.
type Shape = Vec<(u64, Inner)>;

enum Inner {
    Numbers,
    Message(Shape),
}

/// See `server.wire.parsing.fields_left`.
#[pyfunction]
pub fn fields_left(body: &[u8], shape: &Bound<'_, PyDict>, most: i64) -> PyResult<i64> {
    let mut left = most;
    count(body, 0, body.len(), &shape_of(shape)?, &mut left);
    Ok(left)
}

/// See `server.wire.parsing.shape_of`.
fn shape_of(shape: &Bound<'_, PyDict>) -> PyResult<Shape> {
    let mut fields = Vec::with_capacity(shape.len());
    for (number, inner) in shape {
        let inner = if inner.is_none() { Inner::Numbers } else { Inner::Message(shape_of(&inner.cast_into()?)?) };
        fields.push((number.extract()?, inner));
    }
    Ok(fields)
}

/// Takes the fields of one message from what is left. None: something malformed, behind which nothing is counted.
fn count(body: &[u8], mut position: usize, end: usize, shape: &Shape, left: &mut i64) -> Option<()> {
    while position < end && *left >= 0 {
        *left -= 1;
        let tag = number(body, &mut position, 5)?;
        match tag & 7 {
            2 => {
                let size = usize::try_from(number(body, &mut position, 5)?).ok()?;
                let next = position.checked_add(size)?;
                match shape.iter().find(|(number, _)| *number == tag >> 3) {
                    Some((_, Inner::Numbers)) => {
                        let packed = body.get(position..next.min(body.len())).unwrap_or_default();
                        *left -= packed.iter().filter(|byte| **byte < 0x80).count() as i64;
                    }
                    Some((_, Inner::Message(inner))) => {
                        count(body, position, next.min(end), inner, left);
                    }
                    None => {}
                }
                position = next;
            }
            0 => {
                number(body, &mut position, 10)?;
            }
            1 => position += 8,
            5 => position += 4,
            _ => {}
        }
    }
    Some(())
}

/// A varint of so many bytes at most; the position is behind it then.
fn number(body: &[u8], position: &mut usize, bytes_max: usize) -> Option<u64> {
    let mut value = 0u64;
    for index in 0..bytes_max {
        let byte = *body.get(*position)?;
        *position += 1;
        value |= u64::from(byte & 0x7f).wrapping_shl(7 * index as u32);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
