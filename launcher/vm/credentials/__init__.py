"""Keys and passwords of the guest's users, which its agent applies."""
