"""What a cluster is made of: commands, tools and images, fetched or built once."""
