"""Generated from proto/ by `make proto`; don't edit."""
