#include <fmt/format.h>

#include <sstream>
#include <string>

#include "regard/case.h"
#include "regard/env.h"
#include "regard/version.h"
#include "tools/regard/commands.h"
#include "tools/regard/completion.h"
#include "tools/regard/exit_codes.h"
#include "tools/regard/output.h"

namespace regard::cli {
namespace {

/// Text for troff: nothing in it is a request, and dashes are those that one types.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
      out += c;
    }
  }
  return out;
}

/// A paragraph with a tag before it.
std::string tagged(const std::string& tag, const std::string& text) {
  return fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(tag), roff(text));
}

std::string section(const std::string& title) { return ".SH " + title + "\n"; }

std::string verb_text(const VerbInfo& verb) {
  std::string usage = "regard " + verb.name + " [OPTION...]";
  std::string options;
  for (const OptionInfo& option : verb.options) {
    if (option.is_positional) usage += " " + option.usage();
    options += tagged(option.usage(), option.text());
  }
  return fmt::format(".SS {}\n.B {}\n.PP\n{}.\n{}", roff(verb.name), roff(usage),
                     roff(verb.description), options);
}

std::string case_words_text() {
  return ".PP\nThe words, in any order:\n.PP\n.nf\n" + roff(case_syntax_help()) + ".fi\n";
}

std::string environment_text() {
  std::string out;
  for (const EnvVariable& variable : read_env().variables) {
    out += tagged(variable.name, variable.meaning);
  }
  return out + tagged("NO_COLOR", "Set and not empty: no colours, as with TERM=dumb.");
}

std::string manual(const CLI::App& app) {
  std::string out = fmt::format(
      ".TH REGARD 1 \"\" \"regard {}\" \"User Commands\"\n{}regard \\- {}\n{}"
      ".B regard\n.I VERB\n[\\fIOPTION\\fR...] [\\fIARGUMENT\\fR...]\n",
      version(), section("NAME"), roff("scaled dot-product attention on several backends"),
      section("SYNOPSIS"));
  out += section("DESCRIPTION") + roff(description_of(app)) + "\n";
  for (const OptionInfo& option : options_of(app)) out += tagged(option.usage(), option.text());
  out += section("VERBS");
  for (const VerbInfo& verb : verb_infos(app)) out += verb_text(verb);
  out += section("CASES") +
         roff(
             "A case names a problem in words: b2 hq8 hkv2 sq128 skv1024 d64 bf16 causal "
             "diag=br lens.") +
         "\n" + case_words_text();
  out += section("\"EXIT STATUS\"");
  for (const ExitMeaning& exit : kExitMeanings) out += tagged(exit.code, exit.meaning);
  return out + section("ENVIRONMENT") + environment_text();
}

}  // namespace

Command add_man(CLI::App& app) {
  CLI::App* verb = add_verb(app, "man", "The manual page, for man -l -");
  return {verb, [&app] {
            Output output("man", {});
            output.print(manual(app));
            return output.finish(kExitOk);
          }};
}

}  // namespace regard::cli
