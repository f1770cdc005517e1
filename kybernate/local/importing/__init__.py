"""models.yaml made of what somebody has for another server: llama-swap's file, Ollama's models."""
