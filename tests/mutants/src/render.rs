//! A file of the copy: the original's text, with a choice at each site.
//!
//! Lines stay what they are. Comments mark what belongs to which mutant (`/*<17*/ … /*17>*/`) and to which site (`/*[17*/ … /*17]*/`), so that
//! the compiler's complaints find their mutants.

use std::cmp::Reverse;

use crate::sites::{Site, Span, What};

/// The text with all choices.
pub fn render(source: &str, sites: &[Site]) -> String {
    let mut sorted: Vec<&Site> = sites.iter().collect();
    // Whoever contains others comes before them, and an empty place before what begins there.
    let outer = |site: &Site| matches!(site.what, What::Guard { .. } | What::Opaque);
    sorted.sort_by_key(|site| (site.span.start, !site.span.is_empty(), Reverse(site.span.end), !outer(site)));
    Text { source, sites: &sorted }.part(0..source.len(), &sorted)
}

struct Text<'a> {
    source: &'a str,
    sites: &'a [&'a Site],
}

impl Text<'_> {
    /// The source from here to there.
    fn part(&self, span: Span, sites: &[&Site]) -> String {
        let (mut out, mut at) = (String::new(), span.start);
        for site in sites {
            if site.span.start < at || site.span.end > span.end {
                continue;
            }
            out.push_str(&self.source[at..site.span.start]);
            out.push_str(&self.site(site));
            at = site.span.end;
        }
        out + &self.source[at..span.end]
    }

    /// What lies inside of a site, with its own sites.
    fn inner(&self, span: &Span, of: &Site) -> String {
        let inside: Vec<&Site> = self
            .sites
            .iter()
            .copied()
            .filter(|site| !std::ptr::eq(*site, of) && span.start <= site.span.start && site.span.end <= span.end)
            // An empty place where this begins is before it, not in it.
            .filter(|site| !(site.span.is_empty() && site.span.start == span.start))
            .collect();
        self.part(span.clone(), &inside)
    }

    fn site(&self, site: &Site) -> String {
        let id = site.id();
        let inner = |span: &Span| self.inner(span, site);
        // `alive` says what a mutant does, given what replaces what.
        let choice = |alive: &dyn Fn(&str) -> String, dead: String| {
            let arms: String = site.choices.iter().map(|(n, with)| format!("{n}u32 => /*<{n}*/{}/*{n}>*/, ", alive(with))).collect();
            format!("match crate::mutant::at({id}) {{ {arms}_ => {dead} }}")
        };
        let text = match &site.what {
            What::Arithmetic { left, op, right } => {
                let op = &self.source[op.clone()];
                let choice = choice(&|with| format!("__l {with} __r"), format!("__l {op} __r"));
                format!("(match ({}, {}) {{ (__l, __r) => {choice} }})", inner(left), inner(right))
            }
            What::Comparison { left, op, right } => {
                let op = &self.source[op.clone()];
                let choice = choice(&|with| format!("__l {with} __r"), format!("__l {op} __r"));
                format!("(match (&({}), &({})) {{ (__l, __r) => {choice} }})", inner(left), inner(right))
            }
            // `a && b` goes on with b where a is true, `a || b` where it is false.
            What::Logic { left, right, and } => {
                let alive: String =
                    site.choices.iter().map(|(n, _)| format!("/*<{n}*/(crate::mutant::at({id}) == {n}u32)/*{n}>*/")).collect();
                let goes_on = if *and { "__l !=" } else { "__l ==" };
                format!("(match ({}) {{ __l => if {goes_on} {alive} {{ {} }} else {{ __l }} }})", inner(left), inner(right))
            }
            What::Assignment { left, op, right } => {
                let op = &self.source[op.clone()];
                let choice = choice(&|with| format!("{{ *__l {with} __r }}"), format!("{{ *__l {op} __r }}"));
                format!("(match ({}) {{ __r => match &mut ({}) {{ __l => {choice} }} }})", inner(right), inner(left))
            }
            What::Unary { op, operand } => {
                let op = &self.source[op.clone()];
                let choice = choice(&|_| "__x".to_owned(), format!("{op}__x"));
                format!("(match ({}) {{ __x => {choice} }})", inner(operand))
            }
            What::Guard { guard, arm } => {
                let stays = arm.map(|n| format!("/*<{n}*/(crate::mutant::at({id}) != {n}u32)/*{n}>*/"));
                let guard = guard.as_ref().map(|guard| match site.choices.is_empty() {
                    true => format!("({})", inner(guard)),
                    false => format!("({})", choice(&|with| with.to_owned(), inner(guard))),
                });
                match (stays, guard) {
                    (Some(stays), Some(guard)) => format!("{stays} && {guard}"),
                    (Some(stays), None) => format!(" if {stays}"),
                    (None, guard) => guard.unwrap_or_default(),
                }
            }
            What::Base { base } => {
                let (before, after) = (inner(&(site.span.start..base.start)), inner(&(base.end..site.span.end)));
                return format!("(match ({}) {{ __base => {before}__base{after} }})", inner(base));
            }
            What::Field { name, value } => {
                format!("{name}: {}", choice(&|_| format!("__base.{name}"), inner(value)))
            }
            What::Body => choice(&|with| format!("return {}", with_std(with)), "{}".to_owned()) + " ",
            What::Opaque => {
                let body = format!("{{ {} }}", inner(&site.span));
                let other = |more: String| format!("crate::mutant::Either::Right({more})");
                site.choices.iter().rev().fold(body, |rest, (n, with)| {
                    // Behind `impl Iterator` it is never a `&mut` in this kernel.
                    let with = with_std(with).replace("::std::boxed::Box::leak(", "&*::std::boxed::Box::leak(");
                    let alive = format!("/*<{n}*/crate::mutant::Either::Left({with})/*{n}>*/");
                    format!("match crate::mutant::at({id}) {{ {n}u32 => {alive}, _ => {} }}", other(rest))
                })
            }
            What::Const => return String::new(),
        };
        // Comments would part `..` from what follows nowhere, so every site may have them.
        format!("/*[{id}*/{text}/*{id}]*/")
    }
}

/// The kernel is `no_std`; the copy has std under its name, and values may need it.
fn with_std(value: &str) -> String {
    let mut value = value.to_owned();
    for (name, full) in [
        ("Vec::", "::std::vec::Vec::"),
        ("Box::", "::std::boxed::Box::"),
        ("vec![", "::std::vec!["),
        ("String::", "::std::string::String::"),
    ] {
        value = value.replace(name, full);
    }
    value
}
