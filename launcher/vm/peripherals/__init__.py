"""The small devices: inputs, sound, watchdog, TPM, entropy, memory balloon, panic device, vsock."""
