//! A thread that makes files durable and never takes Python's lock.

use std::fs::File;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::thread::Builder;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// What is told of an error without a number (EIO).
const UNKNOWN_ERROR: i32 = 5;

/// Ends when it is no longer referred to.
#[pyclass(frozen)]
pub struct SyncThread {
    asked: Sender<RawFd>,
    results: UnixStream,
}

#[pymethods]
impl SyncThread {
    #[new]
    fn new() -> PyResult<Self> {
        let (results, tells) = UnixStream::pair()?;
        let (asked, numbers) = channel();
        Builder::new().name("log-flush".into()).spawn(move || sync_all(numbers, tells))?;
        Ok(Self { asked, results })
    }

    /// Readable when a file that was asked for is durable, or cannot be made so: then call `finish`.
    fn fileno(&self) -> RawFd {
        self.results.as_raw_fd()
    }

    /// Begin an fdatasync of the file that is open under this number, and stays so until `finish` has told of it.
    fn start(&self, number: RawFd) -> PyResult<()> {
        self.asked.send(number).map_err(|_| PyRuntimeError::new_err("the thread that flushes has ended"))
    }

    /// The error number of the next fdatasync that was asked for, 0 for none; waits for its end.
    fn finish(&self, py: Python<'_>) -> PyResult<i32> {
        let mut told = [0; 4];
        py.detach(|| (&self.results).read_exact(&mut told))?;
        Ok(i32::from_ne_bytes(told))
    }
}

fn sync_all(numbers: Receiver<RawFd>, mut tells: UnixStream) {
    for number in numbers {
        // SAFETY: it is open, and the one who asked closes it
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(number) });
        let error = file.sync_data().err();
        let number = error.map_or(0, |error| error.raw_os_error().unwrap_or(UNKNOWN_ERROR));
        if tells.write_all(&number.to_ne_bytes()).is_err() {
            return; // nobody listens any more
        }
    }
}
