//! A run that is played call by call.

pub(crate) use cpp_sched::{
    Admission, Attos, Chunking, Config, CostModel, EmptyReason, Event, FinishReason, Gate, KvGroup, KvGroups, Pipelining, PolicyKind,
    PreemptedOutput, RequestId, Role, RowKind,
};
pub(crate) use cpp_sched_tests::driver::{Driver, Line, LoggedRow};
pub(crate) use cpp_sched_tests::op::{Extras, Op, Shape};

/// A run under a configuration.
pub(crate) struct Play(pub(crate) Driver);

impl Play {
    pub(crate) fn new(set: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        (config.block_size, config.num_blocks) = (4, 64);
        set(&mut config);
        Self(Driver::new(config).expect("a valid configuration"))
    }

    pub(crate) fn ops(&mut self, ops: impl IntoIterator<Item = Op>) -> &mut Self {
        for op in ops {
            self.0.apply(&op).unwrap_or_else(|text| panic!("{op:?}: {text}"));
        }
        self
    }

    pub(crate) fn submit(&mut self, shapes: impl IntoIterator<Item = Shape>) -> &mut Self {
        self.ops(shapes.into_iter().map(Op::Submit))
    }

    pub(crate) fn drain(&mut self) -> &mut Self {
        self.0.drain().unwrap_or_else(|text| panic!("while draining: {text}"));
        self
    }

    /// Rows of the batches so far: (request, start, length).
    pub(crate) fn batches(&self) -> Vec<Vec<(u64, u32, u32)>> {
        let rows = |rows: &[LoggedRow]| rows.iter().map(|row| (row.request.0, row.start, row.len)).collect();
        self.0
            .records()
            .iter()
            .filter_map(|record| if let Line::Batch(batch, _) = &record.line { Some(rows(batch)) } else { None })
            .collect()
    }

    pub(crate) fn last(&self) -> &Line {
        &self.0.records().last().expect("a call").line
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.records().iter().flat_map(|record| record.events.iter().copied()).collect()
    }

    pub(crate) fn reason(&self, id: u64) -> Option<FinishReason> {
        self.events().into_iter().find_map(|event| match event {
            Event::Finished { request, reason } if request == RequestId(id) => Some(reason),
            _ => None,
        })
    }

    pub(crate) fn stats(&self) -> cpp_sched::Stats {
        self.0.scheduler().stats()
    }
}

pub(crate) fn shape(id: u64, len: u32, max_tokens: u32) -> Shape {
    Shape::new(id, len, max_tokens)
}

/// The first `shared` of `len` tokens are those of family 0.
pub(crate) fn sharing(id: u64, shared: u32, len: u32) -> Shape {
    Shape { shared, ..shape(id, len, 1) }
}

pub(crate) fn due(shape: Shape, ttft_slo_ns: u64) -> Shape {
    Shape { ttft_slo_ns: Some(ttft_slo_ns), ..shape }
}

pub(crate) fn more(id: u64) -> Op {
    Op::Extend { id, len: 9, max_tokens: 2, author: 24 }
}

pub(crate) fn cached(config: &mut Config) {
    config.prefix_caching = true;
    config.stages = 2;
}
