"""Who asks: models, pods, servers and applications, well made or not."""
