//! [`setters!`]: methods that each change one setting of a value. [`default_is_new!`]: the value before the changes.

/// `setters! { Type, docs setting: type [=> field = value, ..]; .. }`: for each setting a method that takes and returns
/// the value. Without a field, the setting is the field of that name; without a type, the method has no argument.
macro_rules! setters {
    ($name:ident $(<$life:lifetime>)?, $($(#[$docs:meta])* $setting:ident $(: $type:ty)? $(=> $($($field:ident).+ = $value:expr),+)?;)+) => {
        impl $(<$life>)? $name $(<$life>)? {$(
            $(#[$docs])*
            #[must_use]
            pub fn $setting(mut self $(, $setting: $type)?) -> Self {
                $crate::setters::setters!(@set self $setting $($($($field).+ = $value),+)?);
                self
            }
        )+}
    };
    (@set $self:ident $setting:ident) => {
        $self.$setting = $setting
    };
    (@set $self:ident $setting:ident $($($field:ident).+ = $value:expr),+) => {
        $($self.$($field).+ = $value;)+
    };
}
pub(crate) use setters;

/// Implements `Default` of a type by its `new`.
macro_rules! default_is_new {
    ($name:ident) => {
        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}
pub(crate) use default_is_new;
