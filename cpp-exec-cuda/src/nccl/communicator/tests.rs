//! Communicators against a stand-in for the library: what is called, in which order, and what comes of its answers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::{Communicator, Progress, Rank};
use crate::nccl::library::{Functions, Nccl};
use crate::nccl::types::{Config, DataType, EdgeConfig, Handle, UniqueId};
use crate::nccl::{NcclCode, NcclError};

const IN_PROGRESS: c_int = 7;
const REMOTE: c_int = 6;

/// What the stand-in was asked, and what it will answer; each test has its thread.
#[derive(Default)]
struct Stand {
    calls: Vec<String>,
    /// Answers to calls that do something, 0 when there are none left.
    results: VecDeque<c_int>,
    /// Answers to polls, likewise.
    polls: VecDeque<c_int>,
}

thread_local! {
    static STAND: RefCell<Stand> = RefCell::default();
}

fn answer(call: String) -> c_int {
    STAND.with_borrow_mut(|stand| {
        stand.calls.push(call);
        stand.results.pop_front().unwrap_or(0)
    })
}

fn calls() -> Vec<String> {
    STAND.with_borrow_mut(|stand| std::mem::take(&mut stand.calls))
}

fn will(results: &[c_int], polls: &[c_int]) {
    STAND.with_borrow_mut(|stand| {
        stand.results.extend(results);
        stand.polls.extend(polls);
    });
}

extern "C" fn get_version(version: *mut c_int) -> c_int {
    #[allow(unsafe_code)]
    // SAFETY: `Nccl::version` gives a place for a number.
    unsafe {
        *version = 22_809;
    }
    answer("version".into())
}
extern "C" fn get_unique_id(_: *mut UniqueId) -> c_int {
    answer("unique id".into())
}
extern "C" fn init(handle: *mut Handle, ranks: c_int, _: UniqueId, rank: c_int, config: *mut Config) -> c_int {
    #[allow(unsafe_code)]
    // SAFETY: `Communicator::connect` gives a place for a handle, and a configuration.
    let (blocking, most) = unsafe {
        *handle = ptr::without_provenance_mut(64);
        ((*config).blocking, (*config).max_ctas)
    };
    answer(format!("init {rank} of {ranks}, blocking {blocking}, at most {most}"))
}
extern "C" fn finalize(_: Handle) -> c_int {
    answer("finalize".into())
}
extern "C" fn destroy(_: Handle) -> c_int {
    answer("destroy".into())
}
extern "C" fn abort(_: Handle) -> c_int {
    answer("abort".into())
}
extern "C" fn async_error(_: Handle, result: *mut c_int) -> c_int {
    #[allow(unsafe_code)]
    // SAFETY: `Communicator::poll` gives a place for a number.
    unsafe {
        *result = STAND.with_borrow_mut(|stand| stand.polls.pop_front().unwrap_or(0));
    }
    0
}
extern "C" fn error_string(result: c_int) -> *const c_char {
    if result == REMOTE { c"remote process exited".as_ptr() } else { c"something".as_ptr() }
}
extern "C" fn last_error(handle: Handle) -> *const c_char {
    if handle.is_null() { ptr::null() } else { c"socket closed\n".as_ptr() }
}
extern "C" fn send(_: *const c_void, count: usize, kind: c_int, peer: c_int, _: Handle, _: *mut c_void) -> c_int {
    answer(format!("send {count} of {kind} to {peer}"))
}
extern "C" fn recv(_: *mut c_void, count: usize, kind: c_int, peer: c_int, _: Handle, _: *mut c_void) -> c_int {
    answer(format!("receive {count} of {kind} from {peer}"))
}

fn nccl() -> Nccl {
    Nccl {
        functions: Functions {
            get_version,
            get_unique_id,
            init_rank_config: init,
            finalize,
            destroy,
            abort,
            async_error,
            error_string,
            last_error,
            send,
            recv,
        },
    }
}

fn connect(rank: Rank) -> Result<Communicator, NcclError> {
    Communicator::connect(&nccl(), UniqueId::from_bytes([1; 128]), rank, EdgeConfig::default())
}

/// A communicator that is connected, with nothing noted.
fn connected(rank: Rank) -> Communicator {
    let edge = connect(rank).unwrap();
    calls();
    edge
}

fn send_three(edge: &mut Communicator) -> Result<Progress, NcclError> {
    #[allow(unsafe_code)]
    // SAFETY: the stand-in touches no memory.
    unsafe {
        edge.send(ptr::null(), 3, DataType::Bfloat16, ptr::null_mut())
    }
}

fn receive_three(edge: &mut Communicator) -> Result<Progress, NcclError> {
    #[allow(unsafe_code)]
    // SAFETY: the stand-in touches no memory.
    unsafe {
        edge.recv(ptr::null_mut(), 3, DataType::Float32, ptr::null_mut())
    }
}

#[test]
fn ends_know_each_other_and_do_not_block() {
    let mut upstream = connect(Rank::Upstream).unwrap();
    assert_eq!(calls(), ["init 0 of 2, blocking 0, at most 4"]);
    assert_eq!(send_three(&mut upstream), Ok(Progress::Done));
    let mut downstream = connect(Rank::Downstream).unwrap();
    assert_eq!(receive_three(&mut downstream), Ok(Progress::Done));
    assert_eq!(calls(), ["send 3 of 9 to 1", "init 1 of 2, blocking 0, at most 4", "receive 3 of 7 from 0"]);
    assert_eq!(nccl().version(), Ok((2, 28, 9)));
}

#[test]
fn a_call_is_pending_until_a_poll_says_otherwise_and_nothing_is_called_before() {
    will(&[IN_PROGRESS], &[IN_PROGRESS, IN_PROGRESS, 0]);
    let mut edge = connect(Rank::Upstream).unwrap();
    assert_eq!(edge.pending(), Some("ncclCommInitRankConfig"));
    let early = send_three(&mut edge).unwrap_err();
    assert_eq!((early.code, &early.text[..]), (NcclCode::Usage, "ncclCommInitRankConfig is not through yet"));
    assert_eq!((edge.poll(), edge.poll(), edge.poll()), (Ok(Progress::Pending), Ok(Progress::Pending), Ok(Progress::Done)));
    assert_eq!(edge.pending(), None);
    will(&[IN_PROGRESS], &[IN_PROGRESS]);
    assert_eq!(send_three(&mut edge), Ok(Progress::Pending));
    assert_eq!(edge.poll(), Ok(Progress::Pending));
    assert!(receive_three(&mut edge).is_err() && edge.close().is_err());
    assert_eq!(edge.poll(), Ok(Progress::Done));
    assert_eq!(calls(), ["init 0 of 2, blocking 0, at most 4", "send 3 of 9 to 1"]);
}

#[test]
fn an_error_behind_the_scenes_comes_out_of_a_poll_with_its_call() {
    let mut edge = connected(Rank::Upstream);
    will(&[IN_PROGRESS], &[IN_PROGRESS, REMOTE]);
    assert_eq!(send_three(&mut edge), Ok(Progress::Pending));
    assert_eq!(edge.poll(), Ok(Progress::Pending));
    let error = edge.poll().unwrap_err();
    assert_eq!(error.to_string(), "ncclSend failed: remote process exited (socket closed)");
    assert!(error.code.is_worth_another_try());
    // It can be aborted, and nothing else.
    assert_eq!(edge.poll().unwrap_err().code, NcclCode::Usage);
    assert_eq!(receive_three(&mut edge).unwrap_err().code, NcclCode::Usage);
    edge.abort().unwrap();
    assert_eq!(calls(), ["send 3 of 9 to 1", "abort"]);
}

#[test]
fn an_edge_is_finalised_then_destroyed_and_not_aborted() {
    let mut edge = connected(Rank::Downstream);
    will(&[IN_PROGRESS], &[IN_PROGRESS, 0]);
    assert_eq!(edge.close(), Ok(Progress::Pending));
    assert_eq!(edge.poll(), Ok(Progress::Pending));
    assert!(!edge.is_closed());
    assert_eq!(edge.poll(), Ok(Progress::Done));
    assert!(edge.is_closed());
    assert_eq!(edge.poll().unwrap_err().code, NcclCode::Usage);
    drop(edge);
    assert_eq!(calls(), ["finalize", "destroy"]);
}

#[test]
fn an_edge_that_is_dropped_is_aborted_once() {
    drop(connected(Rank::Upstream));
    assert_eq!(calls(), ["abort"]);
    will(&[IN_PROGRESS], &[]);
    let mut closing = connected(Rank::Upstream);
    assert_eq!(closing.poll(), Ok(Progress::Done));
    assert_eq!(closing.close(), Ok(Progress::Pending));
    drop(closing);
    assert_eq!(calls(), ["finalize", "abort"]);
}

#[test]
fn a_connection_that_fails_leaves_nothing_behind() {
    will(&[REMOTE], &[]);
    let error = connect(Rank::Upstream).unwrap_err();
    assert_eq!((error.call, error.code), ("ncclCommInitRankConfig", NcclCode::Remote));
    assert_eq!(calls(), ["init 0 of 2, blocking 0, at most 4", "abort"]);
}

#[test]
fn an_abort_that_fails_says_so_and_is_not_tried_again() {
    let edge = connected(Rank::Upstream);
    will(&[1], &[]);
    assert_eq!(edge.abort().unwrap_err().code, NcclCode::Cuda);
    assert_eq!(calls(), ["abort"]);
}
