//! Fair sharing between tenants: virtual time in cost (without a cost model: in tokens) per weight.
//!
//! The tenant that was served least comes first; a newcomer, and one that comes back, starts at the least of the active ones (Sheng et al.,
//! "Fairness in Serving Large Language Models", OSDI 2024, with cost for tokens). A tenant is active while one of its requests is alive.

use alloc::vec::Vec;
use core::hash::BuildHasher;

use hashbrown::HashMap;

use crate::queue::IndexedHeap;

/// Names of tenants, and what each was served.
#[derive(Clone, Debug)]
pub(crate) struct Tenants<S> {
    tenants: Vec<Tenant>,
    spare: Vec<u32>,
    named: HashMap<u64, u32, S>,
    /// Active tenants by what they were served.
    active: IndexedHeap<(u128, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Tenant {
    #[cfg_attr(feature = "serde", serde(with = "crate::wide"))]
    served: u128,
    requests: u32,
    name: Option<u64>,
}

impl<S: BuildHasher> Tenants<S> {
    pub(crate) fn new(hasher: S) -> Self {
        Self { tenants: Vec::new(), spare: Vec::new(), named: HashMap::with_hasher(hasher), active: IndexedHeap::default() }
    }

    /// One more request of this tenant (none: of one of its own) is alive; its number and what it counts as served. O(log tenants).
    pub(crate) fn enter(&mut self, name: Option<u64>) -> (u32, u128) {
        let known = name.and_then(|name| self.named.get(&name).copied());
        let tenant = known.unwrap_or_else(|| self.add(name));
        let floor = self.active.peek().map_or(0, |((served, _), _)| served);
        let t = &mut self.tenants[tenant as usize];
        if t.requests == 0 {
            t.served = t.served.max(floor);
            self.active.set(tenant, (t.served, tenant));
        }
        t.requests += 1;
        (tenant, t.served)
    }

    fn add(&mut self, name: Option<u64>) -> u32 {
        self.forget_idle();
        let new = Tenant { served: 0, requests: 0, name };
        let tenant = match self.spare.pop() {
            Some(tenant) => {
                self.tenants[tenant as usize] = new;
                tenant
            }
            None => {
                self.tenants.push(new);
                self.tenants.len() as u32 - 1
            }
        };
        if let Some(name) = name {
            self.named.insert(name, tenant);
        }
        tenant
    }

    /// Drops idle tenants that the floor has caught up with, once they outnumber the active ones: nothing is lost, memory stays bounded.
    fn forget_idle(&mut self) {
        if self.named.len() < 2 * self.active.len() + 64 {
            return;
        }
        let floor = self.active.peek().map_or(u128::MAX, |((served, _), _)| served);
        let (tenants, spare) = (&self.tenants, &mut self.spare);
        let before = spare.len();
        self.named.retain(|_, &mut tenant| {
            let t = &tenants[tenant as usize];
            let keep = t.requests > 0 || t.served > floor;
            if !keep {
                spare.push(tenant);
            }
            keep
        });
        // The map's order must decide nothing, not even a number.
        spare[before..].sort_unstable();
    }

    /// A request of this tenant has ended. O(log tenants).
    pub(crate) fn leave(&mut self, tenant: u32) {
        let t = &mut self.tenants[tenant as usize];
        t.requests -= 1;
        if t.requests == 0 {
            self.active.remove(tenant);
            if t.name.is_none() {
                self.spare.push(tenant);
            }
        }
    }

    /// The tenant was served `amount`, at `weight` millionths; what it counts as served now. O(log tenants).
    pub(crate) fn charge(&mut self, tenant: u32, amount: u128, weight_millionths: u64) -> u128 {
        let t = &mut self.tenants[tenant as usize];
        t.served = t.served.saturating_add(amount.saturating_mul(1_000_000) / u128::from(weight_millionths.max(1)));
        self.active.set(tenant, (t.served, tenant));
        t.served
    }

    /// All tenants and the numbers that are free, for a snapshot.
    #[cfg(feature = "serde")]
    pub(crate) fn parts(&self) -> (Vec<Tenant>, Vec<u32>) {
        (self.tenants.clone(), self.spare.clone())
    }

    /// The tenants of a snapshot, with no request alive yet. `None`: numbers that do not fit.
    #[cfg(feature = "serde")]
    pub(crate) fn from_parts(hasher: S, mut tenants: Vec<Tenant>, spare: Vec<u32>) -> Option<Self> {
        let mut free = alloc::vec![false; tenants.len()];
        for &number in &spare {
            let place = free.get_mut(number as usize)?;
            if core::mem::replace(place, true) {
                return None;
            }
        }
        let mut named = HashMap::with_hasher(hasher);
        for (number, (tenant, &free)) in (0..).zip(tenants.iter_mut().zip(&free)) {
            tenant.requests = 0;
            match tenant.name {
                Some(name) if !free && named.insert(name, number).is_some() => return None,
                _ => {}
            }
        }
        Some(Self { tenants, spare, named, active: IndexedHeap::default() })
    }

    /// A request of a snapshot is alive; what its tenant counts as served. `None`: there is no such tenant.
    #[cfg(feature = "serde")]
    pub(crate) fn enter_again(&mut self, tenant: u32) -> Option<u128> {
        let t = self.tenants.get_mut(tenant as usize).filter(|_| !self.spare.contains(&tenant))?;
        t.requests += 1;
        self.active.set(tenant, (t.served, tenant));
        Some(t.served)
    }

    /// Whether every tenant without a name and without a request is free to be used again.
    #[cfg(feature = "serde")]
    pub(crate) fn leaks_none(&self) -> bool {
        (0..).zip(&self.tenants).all(|(number, t)| t.requests > 0 || t.name.is_some() || self.spare.contains(&number))
    }

    /// Requests alive of a tenant, for checks.
    pub(crate) fn requests(&self) -> u32 {
        self.tenants.iter().map(|t| t.requests).sum()
    }
}
