"""Code that all container engines share: labels, images, failed starts, and the steps of each verb."""
