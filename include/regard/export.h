#pragma once

// REGARD_STATIC_DEFINE and regard_EXPORTS are set by the build, never by a user's source.
#if defined(REGARD_STATIC_DEFINE)
#define REGARD_EXPORT
#elif defined(_WIN32)
#if defined(regard_EXPORTS)
#define REGARD_EXPORT __declspec(dllexport)
#else
#define REGARD_EXPORT __declspec(dllimport)
#endif
#else
#define REGARD_EXPORT __attribute__((visibility("default")))
#endif
