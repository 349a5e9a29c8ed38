//! The per-message work of a broker that costs most in Python, once more in Rust.
//!
//! Optional: Quarry runs without it, and what it does is what the Python code does, byte for byte
//! (`tests/native` holds the two against each other). It knows the plain case alone. Whatever is
//! unusual, wrong or too large it leaves alone by returning `None`, and the Python code decides,
//! which is also the only place that refuses anything.
//!
//! And a thread that waits for the disk, `syncs`, and a table of what is stored, `maxima`.

use pyo3::prelude::*;

mod acks;
mod batches;
mod calls;
mod entries;
mod fields;
mod handles;
mod maxima;
mod numbers;
mod queue_keys;
mod receives;
mod records;
mod remoting;
mod sends;
mod staging;
mod stored;
mod syncs;
mod tuples;
mod wire;

/// What Python code it goes with. Raised whenever the two have to change together: `store/native.py` does
/// without a build of another number.
const CONTRACT: u32 = 17;

#[pymodule]
fn quarry_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CONTRACT", CONTRACT)?;
    module.add_class::<calls::CallScanner>()?;
    module.add_function(wrap_pyfunction!(fields::fields_left, module)?)?;
    module.add_class::<sends::SendReader>()?;
    module.add_function(wrap_pyfunction!(sends::send_answer, module)?)?;
    module.add_class::<remoting::RemotingSendReader>()?;
    module.add_class::<receives::ReceiveWriter>()?;
    module.add_function(wrap_pyfunction!(acks::read_ack, module)?)?;
    module.add_function(wrap_pyfunction!(acks::ack_answer, module)?)?;
    module.add_function(wrap_pyfunction!(handles::receipt_handles, module)?)?;
    module.add_class::<stored::RecordReader>()?;
    module.add_class::<syncs::SyncThread>()?;
    module.add_class::<maxima::MaxOffsetTable>()?;
    module.add_class::<entries::EntryMaker>()?;
    module.add_class::<batches::BatchEncoder>()?;
    Ok(())
}
