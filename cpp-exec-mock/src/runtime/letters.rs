//! Short messages from a stage to the one behind it, beside frames and over the same link: how two devices that hand activations on by
//! themselves find each other.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::link::{FrameReceiver, FrameSender, LinkError};
use super::message::Frame;

/// What a frame with a letter has in place of a batch's number.
const LETTER: u64 = u64::MAX;

type Sender = Box<dyn FrameSender<Vec<f32>>>;
type Receiver = Box<dyn FrameReceiver<Vec<f32>>>;

#[derive(Default)]
struct Post {
    down: Option<Sender>,
    arrived: VecDeque<(u64, Vec<u8>)>,
}

/// Both ways of a stage: letters to the stage behind, letters from the stage before. Clones are the same.
#[derive(Clone, Default)]
pub struct Letters {
    post: Arc<Mutex<Post>>,
}

impl fmt::Debug for Letters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Letters({} unread)", self.lock().arrived.len())
    }
}

impl Letters {
    fn lock(&self) -> MutexGuard<'_, Post> {
        // Nobody panics while holding it.
        self.post.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a letter of a generation to the stage behind: as many bytes as a frame of the link may have numbers at most.
    ///
    /// # Errors
    /// There is no stage behind, or it is gone.
    pub fn send(&self, generation: u64, bytes: &[u8]) -> Result<(), LinkError> {
        let mut post = self.lock();
        let down = post.down.as_mut().ok_or(LinkError::Closed)?;
        // A byte in each number: links carry those unchanged that are small integers.
        down.send(Frame { generation, batch: LETTER, activations: bytes.iter().map(|byte| f32::from(*byte)).collect() })
    }

    /// The next letter of a generation from the stage before. Those of earlier ones are thrown away, those of later ones stay.
    #[must_use]
    pub fn take(&self, generation: u64) -> Option<Vec<u8>> {
        let arrived = &mut self.lock().arrived;
        while arrived.front().is_some_and(|(of, _)| *of < generation) {
            arrived.pop_front();
        }
        if arrived.front()?.0 == generation { arrived.pop_front().map(|(_, letter)| letter) } else { None }
    }

    /// The ends of a new post's links, with letters taken out of the one and put into the other. Those of an earlier post are gone.
    pub(super) fn at_post(&self, up: Option<Receiver>, down: Option<Sender>) -> (Option<Receiver>, Option<Sender>) {
        let there = down.is_some();
        *self.lock() = Post { down, arrived: VecDeque::new() };
        let up = up.map(|up| Box::new(Opened { up, letters: self.clone() }) as _);
        (up, there.then(|| Box::new(Shared { letters: self.clone() }) as _))
    }
}

/// The end that frames go into, while letters do as well.
struct Shared {
    letters: Letters,
}

impl FrameSender<Vec<f32>> for Shared {
    fn send(&mut self, frame: Frame<Vec<f32>>) -> Result<(), LinkError> {
        self.letters.lock().down.as_mut().ok_or(LinkError::Closed)?.send(frame)
    }
}

struct Opened {
    up: Receiver,
    letters: Letters,
}

impl FrameReceiver<Vec<f32>> for Opened {
    fn receive(&mut self) -> Result<Frame<Vec<f32>>, LinkError> {
        loop {
            let frame = self.up.receive()?;
            if frame.batch != LETTER {
                return Ok(frame);
            }
            // Numbers that are no bytes are no letter of this program: they become some.
            let bytes = frame.activations.iter().map(|number| *number as u8).collect();
            self.letters.lock().arrived.push_back((frame.generation, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Letters;
    use crate::runtime::link::{ChannelLink, Link};
    use crate::runtime::message::Frame;

    #[test]
    fn letters_and_frames_share_a_link_and_do_not_mix() {
        let (sender, receiver) = ChannelLink.edge().unwrap();
        let (before, behind) = (Letters::default(), Letters::default());
        assert!(before.send(0, b"nobody").is_err());
        let (_, down) = before.at_post(None, Some(sender));
        let (up, none) = behind.at_post(Some(receiver), None);
        assert!(none.is_none() && behind.send(0, b"nobody").is_err());
        let (mut up, mut down) = (up.unwrap(), down.unwrap());
        let frame = Frame { generation: 4, batch: 9, activations: vec![0.5] };
        let all: Vec<u8> = (0..=255).collect();
        before.send(4, &all).unwrap();
        down.send(frame.clone()).unwrap();
        before.send(5, b"").unwrap();
        down.send(frame.clone()).unwrap();
        assert_eq!((up.receive().unwrap(), up.receive().unwrap()), (frame.clone(), frame));
        assert_eq!(behind.take(3), None, "it is early, and stays");
        assert_eq!((behind.take(4), behind.take(4), behind.take(5), behind.take(5)), (Some(all), None, Some(Vec::new()), None));
        assert!(before.take(4).is_none());
    }

    #[test]
    fn a_new_post_has_no_letters_of_the_old_one() {
        let (sender, receiver) = ChannelLink.edge().unwrap();
        let (before, behind) = (Letters::default(), Letters::default());
        let _down = before.at_post(None, Some(sender));
        let (up, _) = behind.at_post(Some(receiver), None);
        before.send(1, b"old").unwrap();
        let _ = before.at_post(None, None);
        assert!(up.unwrap().receive().is_err() && behind.lock().arrived.len() == 1);
        let _ = behind.at_post(None, None);
        assert!(behind.take(1).is_none() && before.send(2, b"gone").is_err());
    }
}
