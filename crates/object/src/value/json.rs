//! The `json!` macro.

/// Creates a [`Value`](crate::Value) from JSON syntax, with expressions as values or names.
#[macro_export]
macro_rules! json {
    // Parses the members one after the other: the name up to its colon, then the value.
    (@members $map:ident []) => {};
    (@members $map:ident [$($name:tt)+] : null $(, $($rest:tt)*)?) => {
        $crate::json!(@member $map [$($name)+] ($crate::Value::Null) [$($($rest)*)?])
    };
    (@members $map:ident [$($name:tt)+] : [$($items:tt)*] $(, $($rest:tt)*)?) => {
        $crate::json!(@member $map [$($name)+] ($crate::json!([$($items)*])) [$($($rest)*)?])
    };
    (@members $map:ident [$($name:tt)+] : {$($members:tt)*} $(, $($rest:tt)*)?) => {
        $crate::json!(@member $map [$($name)+] ($crate::json!({$($members)*})) [$($($rest)*)?])
    };
    (@members $map:ident [$($name:tt)+] : $value:expr $(, $($rest:tt)*)?) => {
        $crate::json!(@member $map [$($name)+] ($crate::json!($value)) [$($($rest)*)?])
    };
    (@members $map:ident [$($name:tt)*] $next:tt $($rest:tt)*) => {
        $crate::json!(@members $map [$($name)* $next] $($rest)*)
    };
    (@member $map:ident [$($name:tt)+] $value:tt [$($rest:tt)*]) => {
        let _ = $map.insert($($name)+, $value);
        $crate::json!(@members $map [] $($rest)*);
    };

    (@items $list:ident) => {};
    (@items $list:ident null $(, $($rest:tt)*)?) => {
        $list.push($crate::Value::Null);
        $crate::json!(@items $list $($($rest)*)?);
    };
    (@items $list:ident [$($items:tt)*] $(, $($rest:tt)*)?) => {
        $list.push($crate::json!([$($items)*]));
        $crate::json!(@items $list $($($rest)*)?);
    };
    (@items $list:ident {$($members:tt)*} $(, $($rest:tt)*)?) => {
        $list.push($crate::json!({$($members)*}));
        $crate::json!(@items $list $($($rest)*)?);
    };
    (@items $list:ident $item:expr $(, $($rest:tt)*)?) => {
        $list.push($crate::json!($item));
        $crate::json!(@items $list $($($rest)*)?);
    };

    (null) => { $crate::Value::Null };
    ([]) => { $crate::Value::Array(::std::vec::Vec::new()) };
    ([$($items:tt)+]) => {{
        #[allow(clippy::vec_init_then_push)]
        let list = {
            let mut list = ::std::vec::Vec::new();
            $crate::json!(@items list $($items)+);
            list
        };
        $crate::Value::Array(list)
    }};
    ({}) => { $crate::Value::Object($crate::Map::new()) };
    ({$($members:tt)+}) => {{
        let mut members = $crate::Map::new();
        $crate::json!(@members members [] $($members)+);
        $crate::Value::Object(members)
    }};
    ($value:expr) => { $crate::value::made(&$value) };
}
