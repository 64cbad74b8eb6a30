//! Parses CEL expressions, and rewrites them so that the interpreter evaluates them correctly and quickly.

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr as Ast, IdedExpr, ListExpr, LiteralValue, operators,
};
use kube_cel::cel::parser::Parser;

pub type Expr = IdedExpr;

/// Maximum length of a rule. The longest known rules have a few kilobytes.
const BYTES_MAX: usize = 32 * 1024;
/// Maximum nesting depth of an expression. Known rules stay below 30. The parser needs several kilobytes of stack per
/// level.
const DEPTH_MAX: usize = 100;

/// An additional function: the value of an optional, as a list of zero or one elements. (The interpreter unwraps an
/// optional that is bound to a variable.)
pub const VALUES: &str = "@values";
/// The variable that holds the receiver of `optMap`. The receiver is used twice, but must be in the expression only
/// once: otherwise each call in a chain would double it. Rules cannot contain this name. One name is enough, because it
/// is read before any variable within is bound.
const RECEIVER: &str = "@held";

/// Parses a rule. The error is a sentence for the rule's author.
pub fn parse(text: &str) -> Result<Expr, String> {
    if text.len() > BYTES_MAX {
        return Err(format!("compilation failed: expression code point size exceeds limit: size: {}", text.len()));
    }
    if nesting(text) > DEPTH_MAX {
        return Err(format!("compilation failed: expression recursion limit exceeded: {DEPTH_MAX}"));
    }
    let parsed = parse_on_large_stack(text)?;
    // Macros add further levels.
    if depth(&parsed) > 4 * DEPTH_MAX {
        return Err(format!("compilation failed: expression recursion limit exceeded: {DEPTH_MAX}"));
    }
    Ok(rewrite(parsed))
}

/// Parses on a separate thread: the parser needs tens of kilobytes of stack per open bracket, more than a request's
/// thread has, and it may panic.
fn parse_on_large_stack(text: &str) -> Result<Expr, String> {
    let parse = || Parser::new().enable_optional_syntax(true).parse(text).map_err(|errors| errors.to_string());
    on_large_stack(parse).and_then(|parsed| parsed).map_err(|error| format!("compilation failed: {error}"))
}

/// Runs a closure on a thread with a large stack. Panics become errors.
pub fn on_large_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, String> {
    const STACK_BYTES: usize = 32 << 20;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cel".to_owned()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, run) {
            Ok(thread) => thread.join().map_err(|_| "internal error in the CEL library".to_owned()),
            Err(error) => Err(format!("cannot start a thread for CEL: {error}")),
        }
    })
}

/// Returns an upper bound of the recursion depth of parsing and evaluating, computed from the text: open brackets, and
/// in each of them the chained operators.
fn nesting(text: &str) -> usize {
    let (mut level, mut outer, mut below) = (Level::default(), Vec::new(), 0);
    let (mut at, mut deepest) = (0, 0);
    let bytes = text.as_bytes();
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\'' | b'"' => at = end_of_string(bytes, at),
            b'(' | b'[' | b'{' => {
                level.chain += 1;
                below += level.depth();
                outer.push(std::mem::take(&mut level));
            }
            b')' | b']' | b'}' => {
                if let Some(last) = outer.pop() {
                    level = last;
                    below -= level.depth();
                }
            }
            b'?' => level = Level { chain: 0, choices: level.choices + 1 },
            b',' => level = Level::default(),
            b'&' | b'|' | b':' => level.chain = 0,
            b'.' | b'+' | b'-' | b'*' | b'/' | b'%' | b'<' | b'>' | b'=' | b'!' => level.chain += 1,
            b'i' if bytes[at..].starts_with(b"in ") => level.chain += 1,
            _ => {}
        }
        deepest = deepest.max(below + level.depth());
        at += 1;
    }
    deepest
}

#[derive(Clone, Copy, Default)]
struct Level {
    chain: usize,
    choices: usize,
}

impl Level {
    fn depth(self) -> usize {
        1 + self.chain + self.choices
    }
}

/// Returns the end of the string literal that starts at `start`.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let quote = bytes[start];
    let is_raw = start > 0 && matches!(bytes[start - 1], b'r' | b'R');
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' if !is_raw => at += 1,
            _ if byte == quote => break,
            _ => {}
        }
        at += 1;
    }
    at
}

pub fn depth(expr: &Expr) -> usize {
    // Uses a worklist instead of recursion, because the expression may be deep.
    let (mut deepest, mut todo) = (0, vec![(expr, 1)]);
    while let Some((expr, depth)) = todo.pop() {
        deepest = deepest.max(depth);
        for_children(&expr.expr, &mut |child| todo.push((child, depth + 1)));
    }
    deepest
}

/// Calls `f` with every direct subexpression.
pub fn for_children<'a>(expr: &'a Ast, f: &mut impl FnMut(&'a Expr)) {
    match expr {
        Ast::Call(call) => call.target.as_deref().into_iter().chain(&call.args).for_each(f),
        Ast::Comprehension(loop_) => {
            [&loop_.iter_range, &loop_.accu_init, &loop_.loop_cond, &loop_.loop_step, &loop_.result]
                .into_iter()
                .for_each(f);
        }
        Ast::List(list) => list.elements.iter().for_each(f),
        Ast::Map(map) => {
            for entry in &map.entries {
                if let EntryExpr::MapEntry(entry) = &entry.expr {
                    f(&entry.key);
                    f(&entry.value);
                }
            }
        }
        Ast::Select(select) => f(&select.operand),
        Ast::Struct(_) | Ast::Ident(_) | Ast::Literal(_) | Ast::Unspecified => {}
    }
}

/// Expands the macros that the parser does not know. Also turns selections into index operations: the interpreter
/// evaluates these without copying, and correctly for optional fields.
fn rewrite(expr: Expr) -> Expr {
    let id = expr.id;
    let ast = match expr.expr {
        Ast::Call(call) => rewrite_call(id, call),
        Ast::Comprehension(mut inner) => {
            inner.iter_range = rewrite(inner.iter_range);
            inner.accu_init = rewrite(inner.accu_init);
            inner.loop_cond = rewrite(inner.loop_cond);
            inner.loop_step = rewrite(inner.loop_step);
            inner.result = rewrite(inner.result);
            Ast::Comprehension(inner)
        }
        Ast::List(mut list) => {
            list.elements = list.elements.into_iter().map(rewrite).collect();
            Ast::List(list)
        }
        Ast::Map(mut map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    entry.key = rewrite(std::mem::take(&mut entry.key));
                    entry.value = rewrite(std::mem::take(&mut entry.value));
                }
            }
            Ast::Map(map)
        }
        Ast::Select(mut select) if select.test => {
            select.operand = Box::new(rewrite(*select.operand));
            Ast::Select(select)
        }
        Ast::Select(select) => {
            let name = Expr { id, expr: Ast::Literal(LiteralValue::String(select.field.as_str().into())) };
            let args = vec![rewrite(*select.operand), name];
            Ast::Call(CallExpr { func_name: operators::INDEX.to_owned(), target: None, args })
        }
        other => other,
    };
    Expr { id, expr: ast }
}

fn rewrite_call(id: u64, mut call: CallExpr) -> Ast {
    call.target = call.target.map(|target| Box::new(rewrite(*target)));
    call.args = call.args.into_iter().map(rewrite).collect();
    let on_cel = matches!(call.target.as_deref(), Some(Expr { expr: Ast::Ident(name), .. }) if name == "cel");
    let variable = match call.args.first() {
        Some(Expr { expr: Ast::Ident(name), .. }) => name.clone(),
        _ => String::new(),
    };
    match (call.func_name.as_str(), call.args.len()) {
        (operators::OPT_SELECT, 2) => {
            call.func_name = operators::OPT_INDEX.to_owned();
            Ast::Call(call)
        }
        // cel.bind(x, value, body)
        ("bind", 3) if on_cel && !variable.is_empty() => {
            let body = call.args.pop().unwrap_or_default();
            let value = call.args.pop().unwrap_or_default();
            bind(id, variable, value, body)
        }
        // optional.optMap(x, body), optional.optFlatMap(x, body)
        (name @ ("optMap" | "optFlatMap"), 2) if call.target.is_some() && !variable.is_empty() => {
            let is_flat = name == "optFlatMap";
            let body = call.args.pop().unwrap_or_default();
            let target = call.target.map(|target| *target).unwrap_or_default();
            let of = |expr: Ast| Expr { id, expr };
            let function = |name: &str, args: Vec<Expr>| {
                of(Ast::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
            };
            let on_optional = |name: &str, args: Vec<Expr>| {
                let target = Some(Box::new(of(Ast::Ident("optional".to_owned()))));
                of(Ast::Call(CallExpr { func_name: name.to_owned(), target, args }))
            };
            let held = || of(Ast::Ident(RECEIVER.to_owned()));
            let first = of(Ast::Literal(LiteralValue::Int(0.into())));
            let bound = of(bind(id, variable, function(operators::INDEX, vec![held(), first]), body));
            let some = if is_flat { bound } else { on_optional("of", vec![bound]) };
            let is_none = function(operators::EQUALS, vec![held(), of(Ast::List(ListExpr::new(Vec::new())))]);
            let choice = function(operators::CONDITIONAL, vec![is_none, on_optional("none", Vec::new()), some]);
            bind(id, RECEIVER.to_owned(), function(VALUES, vec![target]), choice)
        }
        _ => Ast::Call(call),
    }
}

/// Binds a variable: a loop over an empty list whose accumulator is the variable.
fn bind(id: u64, variable: String, value: Expr, body: Expr) -> Ast {
    let of = |expr: Ast| Expr { id, expr };
    Ast::Comprehension(Box::new(ComprehensionExpr {
        iter_range: of(Ast::List(ListExpr::new(Vec::new()))),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_init: value,
        loop_cond: of(Ast::Literal(LiteralValue::Boolean(false.into()))),
        loop_step: of(Ast::Ident(variable.clone())),
        accu_var: variable,
        result: body,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(expr: &Expr) -> usize {
        let mut count = 1;
        for_children(&expr.expr, &mut |part| count += parts(part));
        count
    }

    #[test]
    fn chained_macros_do_not_multiply_the_expressions_size() {
        for (first, link) in [("self.?s", ".optMap(x, x)"), ("self.?s", ".optFlatMap(x, optional.of(x))")] {
            let sizes = [10, 20].map(|links| parts(&parse(&format!("{first}{}", link.repeat(links))).unwrap()));
            assert!(sizes[1] < 2 * sizes[0], "{link}: {sizes:?}");
        }
        let nested = |levels: usize| format!("{}x{}", "self.?s.optMap(x, ".repeat(levels), ")".repeat(levels));
        let sizes = [5, 10].map(|levels| parts(&parse(&nested(levels)).unwrap()));
        assert!(sizes[1] < 2 * sizes[0], "{sizes:?}");
    }
}
