//! Choices between a few ways.

macro_rules! serde_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$vmeta:meta])* $variant:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
        #[non_exhaustive]
        pub enum $name { $($(#[$vmeta])* $variant),* }
    };
}

serde_enum! {
    /// How many batches in flight may hold the same request.
    pub enum Pipelining {
        /// The next chunk of a prompt may be scheduled while earlier ones are in flight: one chunk a stage.
        #[default]
        Chunk,
        /// A request has at most one batch in flight; others fill the pipeline.
        Request,
        /// One batch in flight over all, whatever the stages.
        None,
    }
}

serde_enum! {
    /// The order in which prompt work is given out, over admitted and waiting requests alike. Ties go to the earlier submit.
    pub enum PolicyKind {
        /// As submitted.
        #[default]
        Fcfs,
        /// The smaller [`priority`](crate::Request::priority) first.
        Priority,
        /// Earliest deadline (arrival + TTFT target) first; none = last.
        Edf,
        /// Fewest prompt tokens still to compute first.
        Srpf,
        /// Least relative slack first: `(deadline - now - left) / total`, `left` and `total` being the cost (without a cost model: the tokens) of
        /// the prompt still to compute and of the whole; no deadline = last.
        Lars,
        /// The tenant with the least cost (without a cost model: tokens) served per weight first.
        Fair,
        /// Earliest of deadline + [`hybrid_alpha_ns`](crate::Config::hybrid_alpha_ns) for each prompt token still to compute first: between `Edf`
        /// (alpha 0) and `Srpf` (a large alpha); no deadline = last. Niyama/QoServe, arXiv 2503.22562.
        Hybrid,
        /// The caller's own, given to [`Scheduler::with_policy`](crate::Scheduler::with_policy).
        Custom,
    }
}

serde_enum! {
    /// What is set aside when a request is admitted.
    pub enum Admission {
        /// Blocks for the whole known sequence, so that a prompt under way never lacks one.
        #[default]
        ReservePrompt,
        /// Blocks for the next chunk only.
        Lazy,
        /// Blocks for prompt + `max_tokens`; nobody who runs is ever preempted (a fork or session that waits may have to give back what it holds).
        NoEvict,
    }
}

serde_enum! {
    /// How decodes spread over the batches in flight. Off is best where token targets shape batches
    /// ([`Latency::follow_slack`](crate::Latency::follow_slack)): they say how much rides in one, and who waits for a lighter one is late by it.
    pub enum Balance {
        /// As many as the budget allows, in every batch.
        #[default]
        Off,
        /// With n requests decoding, no batch holds more than ceil(n / D) decodes.
        Count,
        /// No batch holds more than 1/D of the cost (without a cost model: of the contexts) of all decodes, plus that of the largest one.
        Cost,
    }
}

serde_enum! {
    /// What this scheduler's machine does of a request.
    pub enum Role {
        /// Prompt and output.
        #[default]
        Unified,
        /// The prompt; a request ends when its KV is handed over.
        Prefill,
        /// The output; the prompt's KV arrives from elsewhere.
        Decode,
    }
}

serde_enum! {
    /// What happens to a result in flight of a request that was preempted meanwhile.
    pub enum PreemptedOutput {
        /// Its token counts; the request resumes after it.
        #[default]
        Deliver,
        /// It leaves no trace; the token is computed again.
        Drop,
    }
}
