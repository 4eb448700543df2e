//! Host memory with ceilings: budgets, pools, page-locked and mapped bytes.
