//! Everything that may come instead of a handshake.

use super::{HandshakeError, PROTOCOL, Purpose, answer, greet, greet_as};
use crate::runtime::process::sealed::SealError;
use crate::runtime::process::secret::Secret;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// More than any test needs, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where it is used up.
const SHORT: Duration = Duration::from_millis(300);

fn secret() -> Secret {
    Secret::new("a secret of the tests").unwrap()
}

/// What the server says of a client.
fn judged(client: impl FnOnce(TcpStream) + Send + 'static) -> HandshakeError {
    judged_within(PATIENCE, client)
}

fn judged_within(patience: Duration, client: impl FnOnce(TcpStream) + Send + 'static) -> HandshakeError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || client(TcpStream::connect(address).unwrap()));
    let verdict = answer(&listener.accept().unwrap().0, &secret(), Purpose::Control, patience).unwrap_err();
    client.join().unwrap();
    verdict
}

#[test]
fn who_knows_the_secret_talks() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let (mut writer, mut reader) = greet(&TcpStream::connect(address).unwrap(), &secret(), Purpose::Edge, PATIENCE).unwrap();
        writer.send(b"ping").unwrap();
        assert_eq!(reader.receive().unwrap(), b"pong");
    });
    let (mut writer, mut reader) = answer(&listener.accept().unwrap().0, &secret(), Purpose::Edge, PATIENCE).unwrap();
    assert_eq!(reader.receive().unwrap(), b"ping");
    writer.send(b"pong").unwrap();
    client.join().unwrap();
}

#[test]
fn a_wrong_secret_is_refused_and_both_are_told() {
    let verdict = judged(|stream| {
        let wrong = Secret::new("another secret, alas").unwrap();
        assert_eq!(greet(&stream, &wrong, Purpose::Control, PATIENCE).unwrap_err(), HandshakeError::Secret);
    });
    assert_eq!(verdict, HandshakeError::Secret);
}

#[test]
fn a_server_that_does_not_know_the_secret_is_not_believed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let liar = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut hello = [0; 40];
        stream.read_exact(&mut hello).unwrap();
        // It sends back what came but for a bit, and claims that all is fine.
        hello[6] = 0;
        hello[39] ^= 1;
        stream.write_all(&hello).unwrap();
        let mut proof = [0; 33];
        stream.read_exact(&mut proof[1..]).unwrap();
        stream.write_all(&proof).unwrap();
    });
    let verdict = greet(&TcpStream::connect(address).unwrap(), &secret(), Purpose::Control, PATIENCE).unwrap_err();
    assert_eq!(verdict, HandshakeError::Secret);
    liar.join().unwrap();
}

#[test]
fn an_echo_is_no_leader() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let echo = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut back = stream.try_clone().unwrap();
        drop(std::io::copy(&mut stream, &mut back));
    });
    let stream = TcpStream::connect(address).unwrap();
    // Not that it is of another version, as the byte that comes back would have it.
    assert_eq!(greet(&stream, &secret(), Purpose::Control, PATIENCE).unwrap_err(), HandshakeError::Stranger);
    drop(stream);
    echo.join().unwrap();
}

#[test]
fn another_version_is_told_to_both() {
    let verdict = judged(|stream| {
        let theirs = greet_as(PROTOCOL + 1, &stream, &secret(), 1, PATIENCE).unwrap_err();
        assert_eq!(theirs, HandshakeError::Protocol { ours: PROTOCOL + 1, theirs: PROTOCOL });
    });
    assert_eq!(verdict, HandshakeError::Protocol { ours: PROTOCOL, theirs: PROTOCOL + 1 });
}

#[test]
fn another_purpose_is_refused() {
    let verdict = judged(|stream| drop(greet(&stream, &secret(), Purpose::Edge, PATIENCE)));
    assert_eq!(verdict, HandshakeError::Purpose(2));
}

#[test]
fn garbage_and_huge_lengths_are_strange() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 1000], &[0xff; 8]] {
        assert_eq!(judged(move |mut stream| stream.write_all(bytes).unwrap()), HandshakeError::Stranger);
    }
}

#[test]
fn who_hangs_up_or_says_nothing_holds_nobody() {
    assert_eq!(judged(drop), HandshakeError::Connection(SealError::Closed));
    let silent = HandshakeError::Connection(SealError::Silent(SHORT));
    assert_eq!(judged_within(SHORT, |stream| drop((std::thread::sleep(2 * SHORT), stream))), silent);
}

#[test]
fn one_byte_at_a_time_gains_no_time() {
    let since = Instant::now();
    let verdict = judged_within(SHORT, |mut stream| {
        for byte in *b"CPPW\x01\x00\x01\x00................................" {
            std::thread::sleep(SHORT / 10);
            if stream.write_all(&[byte]).is_err() {
                return;
            }
        }
    });
    assert_eq!(verdict, HandshakeError::Connection(SealError::Silent(SHORT)));
    assert!(since.elapsed() >= SHORT);
}

#[test]
fn half_a_handshake_is_half_open() {
    let verdict = judged_within(SHORT, |mut stream| {
        stream.write_all(HELLO).unwrap();
        drop(stream.read_to_end(&mut Vec::new()));
    });
    assert_eq!(verdict, HandshakeError::Connection(SealError::Silent(SHORT)));
}

const HELLO: &[u8; 40] = b"CPPW\x01\x00\x01\x00................................";

/// A whole session's bytes: what the client has said, and what the server has.
fn recorded() -> (Vec<u8>, Vec<u8>) {
    let (server, relay) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (server_at, relay_at) = (server.local_addr().unwrap(), relay.local_addr().unwrap());
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let (mut all, mut bytes) = (Vec::new(), [0; 1000]);
            while let Ok(read @ 1..) = from.read(&mut bytes) {
                all.extend_from_slice(&bytes[..read]);
                to.write_all(&bytes[..read]).unwrap();
            }
            drop(to.shutdown(std::net::Shutdown::Write));
            all
        })
    };
    let client = std::thread::spawn(move || {
        let (mut writer, mut reader) = greet(&TcpStream::connect(relay_at).unwrap(), &secret(), Purpose::Control, PATIENCE).unwrap();
        writer.send(b"who I am").unwrap();
        assert_eq!(reader.receive().unwrap(), b"welcome");
    });
    let (near, far) = (relay.accept().unwrap().0, TcpStream::connect(server_at).unwrap());
    let there = copy(near.try_clone().unwrap(), far.try_clone().unwrap());
    let back = copy(far, near);
    let (mut writer, mut reader) = answer(&server.accept().unwrap().0, &secret(), Purpose::Control, PATIENCE).unwrap();
    assert_eq!(reader.receive().unwrap(), b"who I am");
    writer.send(b"welcome").unwrap();
    client.join().unwrap();
    drop((writer, reader));
    (there.join().unwrap(), back.join().unwrap())
}

#[test]
fn a_recorded_session_opens_nothing() {
    let (client, server) = recorded();
    assert_eq!((client.len(), server.len()), (40 + 32 + 4 + 8 + 32, 40 + 33 + 4 + 7 + 32));
    // To a server, all of it: the random number of its own is another one.
    let verdict = judged(move |mut stream| {
        stream.write_all(&client).unwrap();
        let mut all = Vec::new();
        drop(stream.read_to_end(&mut all));
        assert!(all.len() <= 41, "no code comes back, to try secrets out on: {all:?}");
    });
    assert_eq!(verdict, HandshakeError::Secret);
    // And to a client, as the server that it was.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let liar = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(&server).unwrap();
        drop(stream.read_to_end(&mut Vec::new()));
    });
    let stream = TcpStream::connect(address).unwrap();
    assert_eq!(greet(&stream, &secret(), Purpose::Control, PATIENCE).unwrap_err(), HandshakeError::Secret);
    drop(stream);
    liar.join().unwrap();
}

/// Somebody in between who changes a byte of a hello: what was agreed on is part of every code.
#[test]
fn a_hello_that_was_changed_on_its_way_proves_nothing() {
    for at in [6, 7, 8, 39] {
        let verdict = judged(move |mut stream| {
            let mut changed = *HELLO;
            changed[at] ^= 2;
            stream.write_all(&changed).unwrap();
            let mut theirs = [0; 40];
            stream.read_exact(&mut theirs).unwrap();
            stream.write_all(&secret().code("client", &[HELLO, &theirs])).unwrap();
            drop(stream.read_to_end(&mut Vec::new()));
        });
        assert_eq!(verdict, HandshakeError::Secret, "byte {at}");
    }
}

#[test]
fn a_servers_code_is_no_clients_and_a_code_cut_short_is_none() {
    let prove = |purpose: &'static str, length: usize, hang_up: bool| {
        judged_within(if length == 32 || hang_up { PATIENCE } else { SHORT }, move |mut stream| {
            stream.write_all(HELLO).unwrap();
            let mut theirs = [0; 40];
            stream.read_exact(&mut theirs).unwrap();
            stream.write_all(&secret().code(purpose, &[HELLO, &theirs])[..length]).unwrap();
            if hang_up {
                drop(stream.shutdown(std::net::Shutdown::Write));
            }
            drop(stream.read_to_end(&mut Vec::new()));
        })
    };
    assert_eq!(prove("server", 32, false), HandshakeError::Secret);
    assert_eq!(prove("client to server", 32, false), HandshakeError::Secret);
    for length in [0, 1, 16, 31] {
        assert_eq!(prove("client", length, true), HandshakeError::Connection(SealError::Closed), "{length} bytes");
    }
    assert_eq!(prove("client", 31, false), HandshakeError::Connection(SealError::Silent(SHORT)));
}

/// Somebody in between who lets both prove themselves and then turns round what the client says.
#[test]
fn a_message_that_is_sent_back_to_its_sender_is_forged() {
    let (server, relay) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (server_at, relay_at) = (server.local_addr().unwrap(), relay.local_addr().unwrap());
    let between = std::thread::spawn(move || {
        let (near, far) = (relay.accept().unwrap().0, TcpStream::connect(server_at).unwrap());
        let pass = |mut from: &TcpStream, mut to: &TcpStream, length: usize| {
            let mut bytes = vec![0; length];
            from.read_exact(&mut bytes).unwrap();
            to.write_all(&bytes).unwrap();
        };
        pass(&near, &far, 40);
        pass(&far, &near, 40);
        pass(&near, &far, 32);
        pass(&far, &near, 33);
        pass(&near, &near, 4 + 4 + 32);
    });
    let client = std::thread::spawn(move || {
        let (mut writer, mut reader) = greet(&TcpStream::connect(relay_at).unwrap(), &secret(), Purpose::Control, PATIENCE).unwrap();
        writer.send(b"ping").unwrap();
        assert_eq!(reader.receive().unwrap_err(), SealError::Forged);
    });
    let ends = answer(&server.accept().unwrap().0, &secret(), Purpose::Control, PATIENCE).unwrap();
    client.join().unwrap();
    between.join().unwrap();
    drop(ends);
}
