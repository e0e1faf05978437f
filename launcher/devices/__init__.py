"""What devices the guest has, decided from the manifest and the facts: values, which launcher.elements writes down."""
