//! Where the mutants stand in the syntax tree.

use std::collections::BTreeMap;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ReturnType, Type};

use crate::Left;
use crate::list::{Mutant, NOT_BUILT};

/// Bytes of a file.
pub type Span = Range<usize>;

/// A place where the copy has a choice.
#[derive(Debug)]
pub struct Site {
    pub span: Span,
    pub what: What,
    /// The mutants, each with what stands there instead.
    pub choices: Vec<(u32, String)>,
}

/// What stands there.
#[derive(Debug)]
pub enum What {
    /// `left op right`, operands by value.
    Arithmetic { left: Span, op: Span, right: Span },
    /// The same by reference.
    Comparison { left: Span, op: Span, right: Span },
    /// `&&` (`and`) or `||`.
    Logic { left: Span, right: Span, and: bool },
    /// `left op= right`.
    Assignment { left: Span, op: Span, right: Span },
    /// `!x` or `-x`.
    Unary { op: Span, operand: Span },
    /// A guard after a pattern, or the place for one.
    Guard { guard: Option<Span>, arm: Option<u32> },
    /// `..base` in a struct expression whose fields can be left out.
    Base { base: Span },
    /// Such a field: what it is called, and what it is set to.
    Field { name: String, value: Span },
    /// The place before the first statement.
    Body,
    /// All statements of a function that gives back `impl Trait`.
    Opaque,
    /// `const` before `fn`.
    Const,
}

impl Site {
    /// The site's own number: that of its first mutant.
    pub fn id(&self) -> u32 {
        self.numbers().min().unwrap_or(0)
    }

    /// Its mutants.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        let arm = match self.what {
            What::Guard { arm, .. } => arm,
            _ => None,
        };
        self.choices.iter().map(|(number, _)| *number).chain(arm)
    }
}

/// The sites of these mutants. Mutants for which there is none go into `left`.
pub fn find(source: &str, mutants: &[&Mutant], left: &mut Left) -> syn::Result<Vec<Site>> {
    let file = syn::parse_file(source)?;
    let mut wanted = BTreeMap::<(&str, usize), Vec<&Mutant>>::new();
    for mutant in mutants {
        wanted.entry((&mutant.genre, mutant.span.start)).or_default().push(mutant);
    }
    let mut finder = Finder { wanted, left, constant: false, sites: Vec::new() };
    finder.visit_file(&file);
    let Finder { wanted, left, sites, .. } = finder;
    left.mutants.extend(wanted.values().flatten().map(|m| (m.number, "no place")));
    Ok(sites)
}

struct Finder<'a> {
    wanted: BTreeMap<(&'a str, usize), Vec<&'a Mutant>>,
    left: &'a mut Left,
    /// In an expression that the compiler evaluates.
    constant: bool,
    sites: Vec<Site>,
}

fn bytes(of: &impl Spanned) -> Span {
    of.span().byte_range()
}

impl Finder<'_> {
    /// The mutants of this genre that begin here; none where nothing can be chosen.
    fn take(&mut self, genre: &'static str, at: usize, why_not: Option<&'static str>) -> Vec<(u32, String)> {
        let mutants = self.wanted.remove(&(genre, at)).unwrap_or_default();
        let why_not = if self.constant { Some("constant") } else { why_not };
        if let Some(why_not) = why_not {
            self.left.mutants.extend(mutants.iter().map(|m| (m.number, why_not)));
            return Vec::new();
        }
        mutants.iter().map(|m| (m.number, m.replacement.clone())).collect()
    }

    fn add(&mut self, span: Span, what: What, choices: Vec<(u32, String)>) {
        if !choices.is_empty() {
            self.sites.push(Site { span, what, choices });
        }
    }

    fn constant(&mut self, visit: impl FnOnce(&mut Self)) {
        let outside = std::mem::replace(&mut self.constant, true);
        visit(self);
        self.constant = outside;
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block, visit: impl FnOnce(&mut Self)) {
        let stays = signature.constness.is_some() && self.left.constant.contains(&signature.ident.to_string());
        let outside = std::mem::replace(&mut self.constant, stays);
        if let (Some(token), false) = (&signature.constness, stays) {
            self.sites.push(Site { span: bytes(token), what: What::Const, choices: Vec::new() });
        }
        if let (Some(first), Some(last)) = (block.stmts.first(), block.stmts.last()) {
            let (start, end) = (bytes(first).start, bytes(last).end);
            let choices = self.take("FnValue", start, None);
            match is_opaque(&signature.output) {
                true => self.add(start..end, What::Opaque, choices),
                false => self.add(start..start, What::Body, choices),
            }
        }
        visit(self);
        self.constant = outside;
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, |me| visit::visit_item_fn(me, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, |me| visit::visit_impl_item_fn(me, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        match &item.default {
            Some(block) => self.function(&item.sig, block, |me| visit::visit_trait_item_fn(me, item)),
            None => visit::visit_trait_item_fn(self, item),
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(|me| visit::visit_item_const(me, item));
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constant(|me| visit::visit_item_static(me, item));
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(|me| visit::visit_impl_item_const(me, item));
    }

    fn visit_trait_item_const(&mut self, item: &'ast syn::TraitItemConst) {
        self.constant(|me| visit::visit_trait_item_const(me, item));
    }

    fn visit_expr_const(&mut self, item: &'ast syn::ExprConst) {
        self.constant(|me| visit::visit_expr_const(me, item));
    }

    fn visit_type(&mut self, item: &'ast Type) {
        self.constant(|me| visit::visit_type(me, item));
    }

    fn visit_pat(&mut self, item: &'ast syn::Pat) {
        self.constant(|me| visit::visit_pat(me, item));
    }

    fn visit_expr_repeat(&mut self, item: &'ast syn::ExprRepeat) {
        self.visit_expr(&item.expr);
        self.constant(|me| me.visit_expr(&item.len));
    }

    fn visit_expr_binary(&mut self, item: &'ast syn::ExprBinary) {
        let (left, op, right) = (bytes(&item.left), bytes(&item.op), bytes(&item.right));
        let chain = (has_let(&item.left) || has_let(&item.right)).then_some("let chain");
        let choices = self.take("BinaryOperator", op.start, chain);
        let what = match item.op {
            BinOp::And(_) | BinOp::Or(_) => What::Logic { left, right, and: matches!(item.op, BinOp::And(_)) },
            BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) => What::Comparison { left, op, right },
            BinOp::Add(_)
            | BinOp::Sub(_)
            | BinOp::Mul(_)
            | BinOp::Div(_)
            | BinOp::Rem(_)
            | BinOp::BitXor(_)
            | BinOp::BitAnd(_)
            | BinOp::BitOr(_)
            | BinOp::Shl(_)
            | BinOp::Shr(_) => What::Arithmetic { left, op, right },
            _ => What::Assignment { left, op, right },
        };
        self.add(bytes(item), what, choices);
        visit::visit_expr_binary(self, item);
    }

    fn visit_expr_unary(&mut self, item: &'ast syn::ExprUnary) {
        let choices = self.take("UnaryOperator", bytes(&item.op).start, None);
        let what = What::Unary { op: bytes(&item.op), operand: bytes(&item.expr) };
        self.add(bytes(item), what, choices);
        visit::visit_expr_unary(self, item);
    }

    fn visit_expr_match(&mut self, item: &'ast syn::ExprMatch) {
        let takes_all = |arm: &syn::Arm| match &arm.pat {
            syn::Pat::Wild(_) => arm.guard.is_none(),
            // A name; `None` looks the same.
            syn::Pat::Ident(name) => arm.guard.is_none() && name.ident.to_string().starts_with(char::is_lowercase),
            _ => false,
        };
        if !item.arms.iter().any(takes_all) {
            // Without this arm the match has no answer to everything, and the compiler refuses it.
            for arm in item.arms.iter().filter(|arm| arm.guard.is_none()) {
                self.take("MatchArm", bytes(arm).start, Some(NOT_BUILT));
            }
        }
        visit::visit_expr_match(self, item);
    }

    fn visit_arm(&mut self, item: &'ast syn::Arm) {
        let arm = self.take("MatchArm", bytes(item).start, None).first().map(|(number, _)| *number);
        let guard = item.guard.as_ref().map(|(_, guard)| bytes(guard));
        let choices = guard.clone().map_or_else(Vec::new, |guard| self.take("MatchArmGuard", guard.start, None));
        if arm.is_some() || !choices.is_empty() {
            let end = bytes(&item.pat).end;
            let span = guard.clone().unwrap_or(end..end);
            self.sites.push(Site { span, what: What::Guard { guard, arm }, choices });
        }
        visit::visit_arm(self, item);
    }

    fn visit_expr_struct(&mut self, item: &'ast syn::ExprStruct) {
        let before = self.sites.len();
        for field in &item.fields {
            let choices = self.take("StructField", bytes(field).start, None);
            if let syn::Member::Named(name) = &field.member {
                self.add(bytes(field), What::Field { name: name.to_string(), value: bytes(&field.expr) }, choices);
            }
        }
        if let (Some(base), true) = (&item.rest, self.sites.len() > before) {
            self.sites.push(Site { span: bytes(item), what: What::Base { base: bytes(base) }, choices: Vec::new() });
        }
        visit::visit_expr_struct(self, item);
    }
}

/// Whether `let` stands in a condition outside of parentheses: such a chain knows `&&` alone.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(b) => matches!(b.op, BinOp::And(_)) && (has_let(&b.left) || has_let(&b.right)),
        _ => false,
    }
}

fn is_opaque(output: &ReturnType) -> bool {
    struct Search(bool);
    impl<'ast> Visit<'ast> for Search {
        fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut search = Search(false);
    search.visit_return_type(output);
    search.0
}
