//! A training stack built from the memory up.
